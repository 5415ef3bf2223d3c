"""The windows of a model's tenants: each has its own, and all share the dispatches fairly.

A tenant's flood fills its own window and closes its own door. Between tenants the token counters
say who is next, within a tenant the instants at which requests are due. Classes that yield come
after all others, except for their floor: a share of the dispatched tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from math import inf

from headway.core.scheduler.charges import Charges
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.window import DispatchWindow, Yielding
from headway.core.token_counters import OUTPUT_WEIGHT, TokenCounters
from headway.policies.packing.flow_control import FlowControl, FlowLevel
from headway.request import StreamKey
from headway.service_class import ServiceClass

_MOST_EMPTY = 64
_MOST_CHUNKS = 4
"""Times the room of a dispatch that a turn looks at, of each tenant and class."""

Group = tuple[Sequence[Tracked], Sequence[Tracked]]
"""Requests that are packed together: left over from earlier cycles, and new."""


class _InTurn(Collection[Tracked]):
    """Requests of all windows by their tenants' counters, the yielding last; a live view.

    Each tenant's are by arrival here. What is not looked at costs nothing.
    """

    def __init__(self, windows: Mapping[str, DispatchWindow], counters: TokenCounters) -> None:
        self._windows = windows
        self._counters = counters

    def __len__(self) -> int:
        return sum(window.num_admitted for window in self._windows.values())

    def __iter__(self) -> Iterator[Tracked]:
        windows, counter = self._windows.values(), self._counters.of
        if not any(window.yielding.num_requests for window in windows):
            yield from by_turns((window.admitted for window in windows), counter, cost_of)
            return
        for yields in (False, True):
            queues = [_yielding(window.admitted, yields) for window in windows]
            yield from by_turns(queues, counter, cost_of)

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
        for window in self._windows.values():
            window.held = keys

    # --- reading ----------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Number of all requests, including those at the doors."""
        return sum(window.num_waiting for window in self._windows.values())

    @property
    def num_admitted(self) -> int:
        """Number of requests that may be dispatched."""
        return sum([window.num_admitted for window in self._windows.values()])

    @property
    def has_readers(self) -> bool:
        """True if a request waits that passes others on a full unit, and may be dispatched."""
        return any(window.has_readers for window in self._windows.values())

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
        return sum(window.backlog_tokens for window in self._windows.values())

    @property
    def yielding(self) -> Yielding:
        """What yields by its class, of all requests."""
        found = [window.yielding for window in self._windows.values()]
        return Yielding(sum(e.num_requests for e in found), sum(e.num_tokens for e in found))

    @property
    def admitted(self) -> Collection[Tracked]:
        """Requests that may be dispatched, in turn, of one tenant by arrival here; a live view."""
        windows = {name: each for name, each in self._windows.items() if each.num_admitted}
        if len(windows) == 1:
            return next(iter(windows.values())).admitted
        return _InTurn(windows, self.counters)

    @property
    def next(self) -> Tracked | None:
        """The first request, which does not yield, of the tenant that was served least."""
        windows = (self._windows[tenant] for tenant in sorted(self._waiting, key=self.counters.of))
        for window in windows:
            if window.num_admitted and window.yielding.num_requests < window.num_waiting:
                found = next((entry for entry in window.admitted if not entry.yields), None)
                if found is not None:  # else it is at the door
                    return found
        return None

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
        return min([window.next_deadline for window in self._windows.values()], default=inf)

    @property
    def cycle(self) -> int:
        """Number of the present cycle."""
        return max((window.cycle for window in self._windows.values()), default=self._cycle)

    @cycle.setter
    def cycle(self, cycle: int) -> None:
        self._cycle = cycle
        for window in self._windows.values():
            window.cycle = cycle

    def split(self, keys: Iterable[StreamKey] | None = None) -> tuple[list[Tracked], list[Tracked]]:
        """Return (requests left over from earlier cycles, new requests), of these keys if given."""
        legacy: list[Tracked] = []
        new: list[Tracked] = []
        listed = None if keys is None else list(keys)
        for window in self._windows.values():
            left_over, fresh = window.split(listed)
            legacy += left_over
            new += fresh
        return legacy, new

    # --- adding and removing ----------------------------------------------------------

    def add(self, entry: Tracked) -> None:
        """Add a request; a later attempt passes the door."""
        window = self._window_for(entry)
        window.add(entry)
        credit = self.counters.credit
        if window.backlog_tokens > credit:
            small = (t for t, each in self._windows.items() if each.backlog_tokens <= credit)
            self.counters.withdraw(entry.tenant, small)

    def take_back(self, entry: Tracked) -> None:
        """Put a request that had entered before in its old place, by its ``cycle``."""
        self.charges.charge(entry, 0.0)
        self._window_for(entry).take_back(entry)

    def remove(self, key: StreamKey) -> None:
        """Remove a request that was cancelled or is elsewhere."""
        tenant = self._forget(key)
        if tenant is not None:
            self._windows[tenant].remove(key)
            self._note_end(tenant)

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
        for window in self._windows.values():
            window.end_cycle(cycle_time, now=now, rested=rested)

    def expire(self, *, now: float) -> list[Tracked]:
        """Remove and return the requests whose deadline has passed."""
        expired = [e for window in self._windows.values() for e in window.expire(now=now)]
        for entry in expired:
            self._forget(entry.key)
            self._note_end(entry.tenant)
        return expired

    def _window_for(self, entry: Tracked) -> DispatchWindow:
        tenant = entry.tenant
        window = self._windows.get(tenant)
        if window is None:
            cycle = self.cycle
            window = self._windows[tenant] = DispatchWindow(self._flow_control, self._entered)
            window.cycle = cycle
        if tenant not in self._waiting:
            self.counters.join(tenant, self._served(tenant))
            self._waiting[tenant] = None
        self._tenants[entry.key] = tenant
        if entry.service is not None:
            self._classed[entry.key] = entry.service
        return window

    def _served(self, tenant: str) -> list[float]:
        """Return the counters of the others that wait or are served, less what is yet to come."""
        charged = self.in_service()
        others = {*self._waiting, *charged} - {tenant}
        return [self.counters.of(each) - charged.get(each, 0.0) for each in others]

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
        self, legacy: Sequence[Tracked], new: Sequence[Tracked], num_tokens: int
    ) -> list[Group]:
        """Return the requests as (legacy, new) in the groups in which they may be packed.

        Of one tenant and no class they are one group. Else the first group is what fairness gives
        a dispatch of ``num_tokens``, and the second who is next: it may be more than fits, so that
        it would close a unit to those before it. Then come the others, the yielding last.
        """
        if len(self._waiting) < 2 and not self._classed:
            return [(legacy, new)]
        entries = [*legacy, *new]
        is_legacy = {entry.key for entry in legacy}
        ranks = {entry.key: rank for rank, entry in enumerate(self.in_turn(entries))}
        ordered = sorted(entries, key=lambda entry: ranks[entry.key])
        first = within(ordered, num_tokens)
        following, rest = ordered[len(first) : len(first) + 1], ordered[len(first) + 1 :]
        others, yielding = [e for e in rest if not e.yields], [e for e in rest if e.yields]
        kinds = (first, following, others, yielding)
        return [
            ([e for e in kind if e.key in is_legacy], [e for e in kind if e.key not in is_legacy])
            for kind in kinds
            if kind
        ]

    def in_turn(self, entries: Iterable[Tracked]) -> list[Tracked]:
        """Return requests in the order in which their turns come."""
        listed = list(entries)
        if len(self._waiting) < 2 and not self._classed:
            return listed
        fill = self._by_counters(entry for entry in listed if entry.yields)
        ahead: list[Tracked] = []
        left = dict(self._owed)
        for entry in fill:
            name = entry.service.name if entry.service is not None else ""
            if left.get(name, 0.0) >= entry.num_tokens:
                left[name] -= entry.num_tokens
                ahead.append(entry)
        others = self._by_counters(entry for entry in listed if not entry.yields)
        taken = {entry.key for entry in ahead}
        return [*ahead, *others, *(entry for entry in fill if entry.key not in taken)]

    def _by_counters(self, entries: Iterable[Tracked]) -> list[Tracked]:
        """Return requests as their tenants' counters would have them served one by one."""
        by_tenant: dict[str, list[Tracked]] = {}
        for entry in entries:
            by_tenant.setdefault(entry.tenant, []).append(entry)
        for those in by_tenant.values():
            those.sort(key=lambda entry: (entry.due_at, entry.key))
        return list(by_turns(by_tenant.values(), self.counters.of, cost_of))

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
    queues: Iterable[Iterable[Tracked]],
    counter: Callable[[str], float],
    cost: Callable[[Tracked], float],
) -> Iterator[Tracked]:
    """Yield requests, a queue for each tenant: next of the tenant that has had least.

    ``counter``: what a tenant has had over its share. ``cost``: what a request adds to that.
    """
    waiting = ((next(those, None), those) for those in map(iter, queues))
    heap = [
        (counter(entry.tenant), entry.tenant, entry, those)
        for entry, those in waiting
        if entry is not None
    ]
    heapify(heap)
    while heap:
        had, tenant, entry, those = heap[0]
        following = next(those, None)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (had + cost(entry) / entry.share, tenant, following, those))
        yield entry


def _yielding(entries: Iterable[Tracked], yields: bool) -> Iterator[Tracked]:
    return (entry for entry in entries if entry.yields is yields)


def heads(
    legacy: Sequence[Tracked], new: Sequence[Tracked], num_tokens: int
) -> tuple[list[Tracked], list[Tracked]]:
    """Return of each tenant and class those in front that might be packed, by order of arrival.

    A dispatch has room for ``num_tokens``. So a long flood costs a turn little.
    """
    left: dict[tuple[str, str], int] = {}
    groups: list[list[Tracked]] = []
    for entries in (legacy, new):
        groups.append([])
        for entry in entries:
            tokens = left.get(whose(entry), _MOST_CHUNKS * num_tokens)
            if tokens > 0:
                left[whose(entry)] = tokens - max(1, entry.num_tokens)
                groups[-1].append(entry)
    return groups[0], groups[1]


def within(ordered: Sequence[Tracked], num_tokens: int) -> list[Tracked]:
    """Return the first requests that hold at most so many tokens together."""
    found: list[Tracked] = []
    for entry in ordered:
        num_tokens -= entry.num_tokens
        if num_tokens < 0:
            break
        found.append(entry)
    return found


def cost_of(entry: Tracked) -> float:
    """Return the weighted tokens that a dispatch charges for a request."""
    return entry.num_tokens + OUTPUT_WEIGHT * entry.expected_output
