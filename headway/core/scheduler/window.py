"""The window of requests that wait for a dispatch, and the door in front of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from headway.core.scheduler.books import leave_over
from headway.core.scheduler.places import InWindow, Tracked
from headway.policies.packing.flow_control import FlowControl, FlowLevel
from headway.request import StreamKey


class Yielding(NamedTuple):
    """Waiting requests that yield by their class, and their tokens to compute."""

    num_requests: int = 0
    num_tokens: int = 0

    def plus(self, num_requests: int, num_tokens: int) -> Yielding:
        """Return it with so many more of both."""
        return Yielding(self.num_requests + num_requests, self.num_tokens + num_tokens)


NOTHING_YIELDS = Yielding()


@dataclass(slots=True)
class Totals:
    """Sums over windows that share them, so that nobody adds thousands up.

    ``num_admitted``: requests that may be dispatched, ``num_readers`` of them pass others on a
    full unit.
    """

    num_admitted: int = 0
    num_readers: int = 0
    backlog_tokens: int = 0
    yielding: Yielding = NOTHING_YIELDS
    held: Collection[StreamKey] = ()
    """Requests that wait for one unit by choice: flow control does not count their cycles."""


class DispatchWindow:
    """Waiting requests of one model, in order of arrival here.

    While flow control throttles, new requests wait at the door. They are not packed, cannot
    overtake requests that have waited too long, and enter more slowly than others leave.
    ``backlog_tokens``: tokens to compute of all of them, including the door's. ``yielding``: what
    yields by its class, of these. ``entered`` is called with each request that enters.
    """

    def __init__(
        self,
        flow_control: FlowControl,
        entered: Callable[[Tracked], object] | None = None,
        totals: Totals | None = None,
    ) -> None:
        self._totals = totals or Totals()
        self._flow_control = flow_control
        self._entered = entered
        self._admitted: dict[StreamKey, Tracked] = {}
        self._door: dict[StreamKey, Tracked] = {}
        self.backlog_tokens = 0
        self.yielding = Yielding()
        self._credit = 0.0
        self.cycle = 0
        self._cycle_at = -inf
        self._readers: set[StreamKey] = set()

    # --- reading ----------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Number of all requests, including those at the door."""
        return len(self._admitted) + len(self._door)

    @property
    def num_admitted(self) -> int:
        """Number of requests that may be dispatched."""
        return len(self._admitted)

    @property
    def admitted(self) -> Collection[Tracked]:
        """Requests that may be dispatched, by arrival here; a live view."""
        return self._admitted.values()

    @property
    def entries(self) -> list[Tracked]:
        """Return all requests in order of arrival."""
        return [*self._admitted.values(), *self._door.values()]

    @property
    def longest_wait(self) -> int:
        """Cycles for which the longest waiting request has been left over, but for those held."""
        held = self._totals.held
        first = next((e for key, e in self._admitted.items() if key not in held), None)
        return self.cycle - first.cycle if first is not None else 0

    @property
    def level(self) -> FlowLevel:
        """The level of flow control for an arriving request."""
        return self._flow_control.level(self.longest_wait)

    def find(self, key: StreamKey) -> Tracked | None:
        """Return a request that may be dispatched, by its key."""
        return self._admitted.get(key)

    # --- adding and removing ----------------------------------------------------------

    def add(self, entry: Tracked) -> None:
        """Add a request; a later attempt passes the door."""
        assert entry.request is not None, "only submitted requests wait"
        if self.level is FlowLevel.OPEN or entry.request.attempt > 0:
            self._enter(entry)
        else:
            self._door[entry.key] = entry
        self._weigh(entry, 1)

    def take_back(self, entry: Tracked) -> None:
        """Put a request that had entered before in its old place, by its ``cycle``."""
        assert entry.request is not None, "only submitted requests wait"
        leave_over(entry)
        self.cycle = max(self.cycle, entry.cycle)
        behind: list[Tracked] = []
        while self._admitted:
            key, last = self._admitted.popitem()
            if _place(last) < _place(entry):
                self._admitted[key] = last
                break
            behind.append(last)
        for each in (entry, *reversed(behind)):
            self._admitted[each.key] = each
        self._note_entry(entry)
        self._weigh(entry, 1)

    def _enter(self, entry: Tracked) -> None:
        entry.cycle = self.cycle
        self._admitted[entry.key] = entry
        self._note_entry(entry)
        if self._entered is not None:
            self._entered(entry)

    def _note_entry(self, entry: Tracked) -> None:
        self._totals.num_admitted += 1
        if entry.passes_others:
            self._readers.add(entry.key)
            self._totals.num_readers += 1

    def _leave(self, key: StreamKey) -> Tracked | None:
        """Take out and return a request that may be dispatched, if it is one."""
        entry = self._admitted.pop(key, None)
        if entry is not None:
            self._totals.num_admitted -= 1
            self._totals.num_readers -= key in self._readers
            self._readers.discard(key)
        return entry

    def remove(self, key: StreamKey) -> Tracked | None:
        """Remove and return a request that was cancelled or is elsewhere, if it is here."""
        entry = self._leave(key) or self._door.pop(key, None)
        if entry is not None:
            self._weigh(entry, -1)
        self._open_door()
        return entry

    def _weigh(self, entry: Tracked, sign: int) -> None:
        self.backlog_tokens += sign * entry.num_tokens
        self._totals.backlog_tokens += sign * entry.num_tokens
        if entry.yields:
            more = sign, sign * entry.num_tokens
            self.yielding = self.yielding.plus(*more)
            self._totals.yielding = self._totals.yielding.plus(*more)

    def dispatched(self, keys: Iterable[StreamKey]) -> None:
        """Remove dispatched requests; each lets further requests enter from the door."""
        for key in keys:
            entry = self._leave(key)
            assert entry is not None, "what is dispatched had entered"
            self._weigh(entry, -1)
            self._credit += self._flow_control.throttle
        self._open_door()

    def _open_door(self) -> None:
        if not self._door:
            self._credit = 0.0
            return
        while self._door and (self.level is FlowLevel.OPEN or self._credit >= 1):
            if self.level is not FlowLevel.OPEN:
                self._credit -= 1
            self._enter(self._door.pop(next(iter(self._door))))

    def end_cycle(self, cycle_time: float, *, now: float, rested: bool = False) -> None:
        """End a cycle (Algorithm 2, phase 3): each request left over has waited one more.

        Cycles are counted at most once in ``cycle_time``, however many events try a dispatch. If
        turns have ``rested``, all cycles count since the last one in which the first one waited.
        """
        for entry in reversed(self._admitted.values()):
            if is_left_over(entry):
                break  # as were all before it
            leave_over(entry)
        if self._admitted and now >= self._cycle_at + cycle_time:
            since = max(self._cycle_at, next(iter(self._admitted.values())).since)
            num_cycles = int((now - since) / cycle_time) if rested else 1
            self.cycle += max(num_cycles, 1)
            self._cycle_at = now


def is_left_over(entry: Tracked) -> bool:
    """Return whether an earlier dispatch cycle has left a request over."""
    return isinstance(entry.place, InWindow) and entry.place.left_over


def _place(entry: Tracked) -> tuple[int, float, StreamKey]:
    return entry.cycle, entry.since, entry.key
