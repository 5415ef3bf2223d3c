"""The windows of a model's tenants: each has its own, and all share the dispatches fairly.

A tenant's flood fills its own window and closes its own door. Between tenants the token counters
say who is next, within a tenant the instants at which requests are due. Classes that yield come
after all others, except for their floor: a share of the dispatched tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from math import inf

from headway.core.scheduler.charges import Charges
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.window import DispatchWindow, Totals, Yielding, is_left_over
from headway.core.token_counters import OUTPUT_WEIGHT, TokenCounters
from headway.policies.dispatch.feasibility import in_time_first
from headway.policies.packing.flow_control import FlowControl, FlowLevel
from headway.request import StreamKey
from headway.service_class import ServiceClass

_MOST_EMPTY = 64
_MOST_CHUNKS = 4
"""Times the room of a dispatch that a turn looks at, of each tenant and class."""

StepsBack = Callable[[Tracked], bool]
"""Returns whether a request lets others of its tenant go first."""

Group = tuple[Sequence[Tracked], Sequence[Tracked]]
"""Requests that are packed together: left over from earlier cycles, and new."""


class _InTurn(Collection[Tracked]):
    """Requests of all windows by their tenants' counters, the yielding last; a live view.

    Each tenant's are by arrival here. What is not looked at costs nothing.
    """

    def __init__(
        self, windows: Mapping[str, DispatchWindow], totals: Totals, counters: TokenCounters
    ) -> None:
        self._windows = windows
        self._totals = totals
        self._counters = counters

    def __len__(self) -> int:
        return self._totals.num_admitted

    def __iter__(self) -> Iterator[Tracked]:
        windows, counter = self._windows, self._counters.of
        if not self._totals.yielding.num_requests:
            queues = {name: window.admitted for name, window in windows.items()}
            yield from by_turns(queues, counter, cost_of)
            return
        for yields in (False, True):
            those = {name: _yielding(each.admitted, yields) for name, each in windows.items()}
            yield from by_turns(those, counter, cost_of)

    def __contains__(self, entry: object) -> bool:
        return any(entry in window.admitted for window in self._windows.values())


class TenantWindows:
    """The windows of one model, by tenant; with one tenant it is that tenant's window."""

    def __init__(
        self,
        flow_control: FlowControl,
        entered: Callable[[Tracked], object] | None = None,
    ) -> None:
        self._flow_control = flow_control
        self._entered = entered
        self._windows: dict[str, DispatchWindow] = {}
        self._totals = Totals()
        self._deadlines: list[tuple[float, StreamKey]] = []
        self._tenants: dict[StreamKey, str] = {}
        self._waiting: dict[str, None] = {}
        self._classed: dict[StreamKey, ServiceClass] = {}
        self._owed: dict[str, float] = {}
        """Tokens of its floor that a yielding class has not had, by name."""
        self._cycle = 0
        self.counters = TokenCounters()
        self.charges = Charges(self.counters)
        self.in_service: Callable[[], Mapping[str, float]] = dict
        """Returns what tenants were charged for prompts that are not computed yet, by tenant."""

    def hold(self, keys: Collection[StreamKey]) -> None:
        """Note which requests wait for one unit by choice, in place of those before."""
        self._totals.held = keys

    # --- reading ----------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Number of all requests, including those at the doors."""
        return len(self._tenants)

    @property
    def num_admitted(self) -> int:
        """Number of requests that may be dispatched."""
        return self._totals.num_admitted

    @property
    def has_readers(self) -> bool:
        """True if a request waits that passes others on a full unit, and may be dispatched."""
        return self._totals.num_readers > 0

    @property
    def are_several(self) -> bool:
        """True once requests of two tenants have come."""
        return len(self._windows) > 1

    @property
    def tenants(self) -> Collection[str]:
        """Tenants that have a waiting request; a live view."""
        return self._waiting.keys()

    @property
    def backlog_tokens(self) -> int:
        """Tokens to compute of all requests, including those at the doors."""
        return self._totals.backlog_tokens

    @property
    def yielding(self) -> Yielding:
        """What yields by its class, of all requests."""
        return self._totals.yielding

    @property
    def admitted(self) -> Collection[Tracked]:
        """Requests that may be dispatched, in turn, of one tenant by arrival here; a live view."""
        windows = {name: self._windows[name] for name in self._waiting}
        if len(windows) == 1:
            return next(iter(windows.values())).admitted
        return _InTurn(windows, self._totals, self.counters)

    @property
    def next(self) -> Tracked | None:
        """The first request, which does not yield, of the tenant that was served least."""
        return next(self.firsts(), None)

    def firsts(self) -> Iterator[Tracked]:
        """Yield each tenant's first request that does not yield; who was served least first."""
        for tenant in ascending(self._waiting, self.counters.of):
            window = self._windows[tenant]
            if window.num_admitted and window.yielding.num_requests < window.num_waiting:
                first = next((entry for entry in window.admitted if not entry.yields), None)
                if first is not None:  # else it is at the door
                    yield first

    @property
    def entries(self) -> list[Tracked]:
        """Return all requests, each tenant's in order of arrival."""
        return [*chain.from_iterable(window.entries for window in self._windows.values())]

    @property
    def longest_wait(self) -> int:
        """Cycles for which the longest waiting request has been left over."""
        return max((window.longest_wait for window in self._windows.values()), default=0)

    def num_waiting_of(self, tenant: str) -> int:
        """Return the number of a tenant's requests, including those at the door."""
        window = self._windows.get(tenant)
        return window.num_waiting if window is not None else 0

    def backlog_of(self, tenant: str) -> int:
        """Return the tokens to compute of a tenant's requests, including those at the door."""
        window = self._windows.get(tenant)
        return window.backlog_tokens if window is not None else 0

    def level(self, tenant: str) -> FlowLevel:
        """Return the level of flow control for an arriving request of a tenant."""
        window = self._windows.get(tenant)
        return window.level if window is not None else FlowLevel.OPEN

    @property
    def worst_level(self) -> FlowLevel:
        """The level of the tenant that waits longest."""
        return self._flow_control.level(self.longest_wait)

    @property
    def next_deadline(self) -> float:
        """The earliest deadline; infinite for none."""
        return self._deadlines[0][0] if self._deadlines else inf

    @property
    def cycle(self) -> int:
        """Number of the present cycle."""
        return max((window.cycle for window in self._windows.values()), default=self._cycle)

    @cycle.setter
    def cycle(self, cycle: int) -> None:
        self._cycle = cycle
        for window in self._windows.values():
            window.cycle = cycle

    def split(
        self,
        keys: Iterable[StreamKey] | None = None,
        *,
        takes: Callable[[Tracked], bool] = lambda _: True,
        num_tokens: float = inf,
        steps_back: StepsBack = lambda _: False,
    ) -> tuple[list[Tracked], list[Tracked]]:
        """Return (requests left over from earlier cycles, new requests), of these keys if given.

        ``takes``: returns whether a request may go where the turn is. A dispatch there has room
        for ``num_tokens``: of each tenant and class those in front are returned that might be
        packed, by order of arrival, and as many of those that step back. So a long flood costs a
        turn little.
        """
        legacy: list[Tracked] = []
        new: list[Tracked] = []
        for queue in self._queues(keys):
            front = self._first(filter(takes, queue), _MOST_CHUNKS * num_tokens, steps_back)
            for entry in front:
                (legacy if is_left_over(entry) else new).append(entry)
        return legacy, new

    def _first(
        self, queue: Iterable[Tracked], most: float, steps_back: StepsBack
    ) -> Iterator[Tracked]:
        """Yield of each class those in front, and those that step back, until they have ``most``.

        ``most``: tokens.
        """
        left: dict[tuple[str, str, bool], float] = {}
        for entry in queue:
            if most < inf:
                who = *whose(entry), steps_back(entry)
                rest = left.get(who, most)
                left[who] = rest - max(1, entry.num_tokens)
                if rest <= 0 and not (self._classed or who[-1]):
                    return  # those behind are of the same tenant and class
                if rest <= 0:
                    continue
            yield entry

    def _queues(self, keys: Iterable[StreamKey] | None) -> Iterable[Collection[Tracked]]:
        """Return the requests that may be dispatched by tenant, of these keys if given."""
        if keys is None:
            return [self._windows[tenant].admitted for tenant in self._waiting]
        by_tenant: dict[str, list[Tracked]] = {}
        for key in keys:
            tenant = self._tenants.get(key)
            entry = self._windows[tenant].find(key) if tenant is not None else None
            if entry is not None:
                by_tenant.setdefault(entry.tenant, []).append(entry)
        return by_tenant.values()

    # --- adding and removing ----------------------------------------------------------

    def add(self, entry: Tracked) -> None:
        """Add a request; a later attempt passes the door."""
        window = self._window_for(entry)
        window.add(entry)
        self._note_deadline(entry)
        credit = self.counters.credit
        if window.backlog_tokens > credit:
            small = (t for t, each in self._windows.items() if each.backlog_tokens <= credit)
            self.counters.withdraw(entry.tenant, small)

    def take_back(self, entry: Tracked) -> None:
        """Put a request that had entered before in its old place, by its ``cycle``."""
        self.charges.charge(entry, 0.0)
        self._window_for(entry).take_back(entry)
        self._note_deadline(entry)

    def remove(self, key: StreamKey) -> Tracked | None:
        """Remove and return a request that was cancelled or is elsewhere, if it waits."""
        tenant = self._forget(key)
        if tenant is None:
            return None
        entry = self._windows[tenant].remove(key)
        self._note_end(tenant)
        return entry

    def dispatched(self, entries: Sequence[Tracked]) -> None:
        """Remove dispatched requests and charge their tenants; others may enter from the doors."""
        self._owe(entries)
        by_tenant: dict[str, list[Tracked]] = {}
        for entry in entries:
            self._forget(entry.key)
            by_tenant.setdefault(entry.tenant, []).append(entry)
        for tenant, those in by_tenant.items():
            for entry in those:
                is_repeat = entry.request is None or entry.request.attempt > 0
                self.charges.charge(entry, 0.0 if is_repeat else cost_of(entry))
            self._windows[tenant].dispatched(entry.key for entry in those)
            self._note_end(tenant)

    def end_cycle(self, cycle_time: float, *, now: float, rested: bool = False) -> None:
        """End a cycle of every window (``DispatchWindow.end_cycle``)."""
        for tenant in self._waiting:
            self._windows[tenant].end_cycle(cycle_time, now=now, rested=rested)

    def expire(self, *, now: float) -> list[Tracked]:
        """Remove and return the requests whose deadline has passed."""
        expired: list[Tracked] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = self.remove(heappop(self._deadlines)[1])
            if entry is not None:
                expired.append(entry)
        return expired

    def _window_for(self, entry: Tracked) -> DispatchWindow:
        tenant = entry.tenant
        window = self._windows.get(tenant)
        if window is None:
            cycle = self.cycle
            window = DispatchWindow(self._flow_control, self._entered, self._totals)
            self._windows[tenant] = window
            window.cycle = cycle
        if tenant not in self._waiting:
            self.counters.join(tenant, self._served(tenant))
            self._waiting[tenant] = None
        self._tenants[entry.key] = tenant
        if entry.service is not None:
            self._classed[entry.key] = entry.service
        return window

    def _note_deadline(self, entry: Tracked) -> None:
        """Note when a request expires; forget those of removed ones once they are the majority."""
        if entry.request is not None and entry.request.deadline_at < inf:
            heappush(self._deadlines, (entry.request.deadline_at, entry.key))
            if len(self._deadlines) > 64 + 2 * len(self._tenants):
                self._deadlines = [each for each in self._deadlines if each[1] in self._tenants]
                heapify(self._deadlines)

    def _served(self, tenant: str) -> Iterator[float]:
        """Yield the counters of the others that wait or are served, less what is yet to come."""
        charged, counter = self.in_service(), self.counters.of
        yield from (counter(each) for each in self._waiting if each not in charged)
        yield from (counter(each) - own for each, own in charged.items() if each != tenant)

    def _forget(self, key: StreamKey) -> str | None:
        """Return the tenant of a request that waits no longer; None if none waited."""
        self._classed.pop(key, None)
        return self._tenants.pop(key, None)

    def _note_end(self, tenant: str) -> None:
        if self._windows[tenant].num_waiting:
            return
        if self._waiting.pop(tenant, True) is None:
            self.counters.leave(tenant, self._waiting)
        if len(self._windows) - len(self._waiting) > _MOST_EMPTY:
            self._cycle = self.cycle
            self._windows = {each: self._windows[each] for each in self._waiting}

    # --- whose turn it is -------------------------------------------------------------

    def groups(
        self,
        legacy: Sequence[Tracked],
        new: Sequence[Tracked],
        num_tokens: int,
        steps_back: StepsBack = lambda _: False,
    ) -> list[Group]:
        """Return the requests as (legacy, new) in the groups in which they may be packed.

        Of one tenant and no class they are one group, and another behind readers' first tokens
        once some of these step back. Else the first group is what fairness gives a dispatch of
        ``num_tokens``, and the second who is next: it may be more than fits, so that it would
        close a unit to those before it. Then come the others, the yielding last.
        """
        entries = [*legacy, *new]
        kinds: Sequence[Sequence[Tracked]]
        if len(self._waiting) < 2 and not self._classed:
            kinds = in_time_first(entries, steps_back)
            if len(kinds) == 1:
                return [(legacy, new)]
        else:
            ordered = self.in_turn(entries, steps_back)
            first = within(ordered, num_tokens)
            following, rest = ordered[len(first) : len(first) + 1], ordered[len(first) + 1 :]
            others, yielding = [e for e in rest if not e.yields], [e for e in rest if e.yields]
            kinds = first, following, others, yielding
        is_legacy = {entry.key for entry in legacy}
        return [
            ([e for e in kind if e.key in is_legacy], [e for e in kind if e.key not in is_legacy])
            for kind in kinds
            if kind
        ]

    def in_turn(
        self, entries: Iterable[Tracked], steps_back: StepsBack = lambda _: False
    ) -> list[Tracked]:
        """Return requests in the order in which their turns come."""
        listed = list(entries)
        if len(self._waiting) < 2 and not self._classed:
            return sorted(listed, key=steps_back)
        fill = self._by_counters(entry for entry in listed if entry.yields)
        ahead: list[Tracked] = []
        left = dict(self._owed)
        for entry in fill:
            name = entry.service.name if entry.service is not None else ""
            if left.get(name, 0.0) >= entry.num_tokens:
                left[name] -= entry.num_tokens
                ahead.append(entry)
        others = self._by_counters((e for e in listed if not e.yields), steps_back)
        taken = {entry.key for entry in ahead}
        return [*ahead, *others, *(entry for entry in fill if entry.key not in taken)]

    def _by_counters(
        self, entries: Iterable[Tracked], steps_back: StepsBack = lambda _: False
    ) -> list[Tracked]:
        """Return requests as their tenants' counters would have them served one by one."""
        by_tenant: dict[str, list[Tracked]] = {}
        for entry in entries:
            by_tenant.setdefault(entry.tenant, []).append(entry)
        for those in by_tenant.values():
            those.sort(key=lambda entry: (steps_back(entry), entry.due_at, entry.key))
        return list(by_turns(by_tenant, self.counters.of, cost_of))

    def _owe(self, entries: Sequence[Tracked]) -> None:
        """Add the floors' shares of a dispatch for classes that wait; take off what they got."""
        num_tokens = sum(entry.num_tokens for entry in entries)
        yielding = {each.name: each for each in self._classed.values() if each.yields}
        self._owed = {
            name: self._owed.get(name, 0.0) + each.floor * num_tokens
            for name, each in yielding.items()
        }
        for entry in entries:
            if entry.service is not None and entry.yields:
                name = entry.service.name
                self._owed[name] = max(0.0, self._owed[name] - entry.num_tokens)


def whose(entry: Tracked) -> tuple[str, str]:
    """Return whom a request counts for: its tenant, and the name of its class, "" for none."""
    return entry.tenant, entry.service.name if entry.service is not None else ""


def by_turns(
    queues: Mapping[str, Iterable[Tracked]],
    counter: Callable[[str], float],
    cost: Callable[[Tracked], float],
) -> Iterator[Tracked]:
    """Yield requests, a queue for each tenant: next of the tenant that has had least.

    ``counter``: what a tenant has had over its share. ``cost``: what a request adds to that.
    """
    opened: dict[str, Iterator[Tracked]] = {}
    heap = [(counter(tenant), tenant) for tenant in queues]
    heapify(heap)
    while heap:
        had, tenant = heap[0]
        those = opened.get(tenant)
        if those is None:
            those = opened[tenant] = iter(queues[tenant])
        entry = next(those, None)
        if entry is None:
            heappop(heap)
        else:
            heapreplace(heap, (had + cost(entry) / entry.share, tenant))
            yield entry


def ascending(tenants: Iterable[str], counter: Callable[[str], float]) -> Iterator[str]:
    """Yield tenants by what they have had, least first; who is not asked for is not sorted."""
    heap = [(counter(tenant), tenant) for tenant in tenants]
    heapify(heap)
    while heap:
        yield heappop(heap)[1]


def _yielding(entries: Iterable[Tracked], yields: bool) -> Iterator[Tracked]:
    return (entry for entry in entries if entry.yields is yields)


def within(ordered: Sequence[Tracked], num_tokens: int) -> list[Tracked]:
    """Return the first requests that hold at most so many tokens together."""
    first: list[Tracked] = []
    for entry in ordered:
        num_tokens -= entry.num_tokens
        if num_tokens < 0:
            break
        first.append(entry)
    return first


def cost_of(entry: Tracked) -> float:
    """Return the weighted tokens that a dispatch charges for a request."""
    return entry.num_tokens + OUTPUT_WEIGHT * entry.expected_output
