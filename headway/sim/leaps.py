"""Passes of several decode steps; live passes have one (``headway/core/worker/passes.py``).

Between the steps only their own tokens change: everything that arrives meanwhile is handled when
the pass has ended. While a batch only goes on, and nobody waits, nothing is planned: it keeps its
clock (``decode_clock.py``). Whatever may concern one of its requests has all of them looked at
again.
"""

from __future__ import annotations

from collections import abc

from headway.cluster import Role
from headway.core.worker.events import (
    KvAborted,
    KvArrived,
    KvOffered,
    PassCut,
    TransferEnded,
    WorkerEvent,
)
from headway.core.worker.flight import Flight, Share
from headway.core.worker.passes import PlannedPass, StepPasses
from headway.core.worker.planner import PassPlanner
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.forward_pass import Leap, PassItem, PassResult
from headway.policies.batching.queue import Entry
from headway.sim.decode_clock import DecodeClock, pass_item


class Leaps(StepPasses):
    """The planner of a worker's leaps, of at most ``most_steps`` steps each."""

    def __init__(self, state: WorkerState, planner: PassPlanner, most_steps: int) -> None:
        self._state = state
        self._planner = planner
        self._most_steps = most_steps
        self._clock: DecodeClock | None = None
        """The batch that goes on from pass to pass; the state has it, too."""
        self._step_time = 0.0
        """Seconds of the last step."""

    def prepare(self, event: WorkerEvent, flights: abc.Sequence[Flight]) -> None:
        """End the clock where an event may concern one of its requests, or reads one's state."""
        if self._clock is not None and _may_concern(self._clock, event):
            self._release_clock(self._clock, flights[0] if flights else None)

    def go_on(self, until: float, now: float) -> PlannedPass | None:
        """Return the next pass of the same batch with those that join it; None without one."""
        clock = self._clock
        if clock is None:
            return None
        planned = self._next(clock, until, now)
        if planned is None:
            self._release_clock(clock, None)
        return planned

    def _next(self, clock: DecodeClock, until: float, now: float) -> PlannedPass | None:
        joining: list[Entry[Sequence]] = []
        for unit in self._state.units:
            unit.host.settle()
            entries = self._planner.joining(unit, clock, now=now)
            if entries is None:
                return None
            joining += entries
        clock.schedule_checks()
        clock.join(joining)
        if not len(clock):
            return None
        num_steps = clock.steps(self._most(self._most_steps, until, now))
        leap = Leap(num_steps, until, goes_on=True, left=clock.take_left())
        return PlannedPass([pass_item(entry.candidate) for entry in joining], [], leap, clock)

    def begin(self, in_pass: list[Share], until: float, now: float) -> PlannedPass:
        """Return the planned pass, as a leap if all of its requests only decode."""
        items, state = [item for item, _ in in_pass], self._state
        most = self._most(self._planner.most_steps(self._most_steps), until, now)
        if most <= 1 or state.info.role is Role.PREFILL or not _only_decode(items):
            return PlannedPass(items, in_pass)
        clock = DecodeClock(state)
        clock.join(self._planner.served())
        leap = Leap(clock.steps(most), until)
        if self._may_go_on(in_pass):
            clock.begin()
            self._clock = state.clock = clock
            in_pass = []
        else:
            clock.release_all()
        return PlannedPass(items, in_pass, leap, clock)

    def _most(self, most: int, until: float, now: float) -> int:
        """Return the most steps: no blocks are set aside for steps beyond ``until``."""
        if most > 1 and self._step_time:
            return min(most, max(1, 2 + int((until - now) / self._step_time)))
        return most

    def _may_go_on(self, in_pass: list[Share]) -> bool:
        """Return whether the batch may keep its clock behind this pass."""
        state = self._state
        if state.predictions.is_on or not self._planner.serves_all:
            return False
        if any(unit.host.swapped_out or unit.host.swapped_in for unit in state.units):
            return False
        return all(sequence.may_join for _, sequence in in_pass)

    def _release_clock(self, clock: DecodeClock, flight: Flight | None) -> None:
        """End the clock: from now on each request, also of a ``flight``, is planned for."""
        self._clock = self._state.clock = None
        entries = clock.release_all()
        self._planner.serve(entries)
        if flight is not None:
            sequences = [entry.candidate for entry in entries]
            flight.include([(pass_item(sequence), sequence) for sequence in sequences])

    def complete(self, flight: Flight, result: PassResult, now: float) -> list[Share]:
        """Note a pass that has ended; return the requests to look at, in order."""
        clock = flight.clock
        if clock is None:
            return flight.in_pass
        assert isinstance(clock, DecodeClock), "batches without a plan are made here"
        if clock is self._clock:
            return clock.complete(result, now)
        clock.complete_all(result, flight.in_pass)
        return flight.in_pass

    def settle(self, step_time: float | None) -> None:
        """Let go of requests that have ended with the pass; ``step_time`` as in ``StepPasses``."""
        if step_time is not None:
            self._step_time = step_time
        if self._clock is not None:
            self._clock.settle()


def _may_concern(clock: DecodeClock, event: WorkerEvent) -> bool:
    """Return whether an event may concern a request on the clock, or reads one's state."""
    if isinstance(event, PassResult | PassCut | KvOffered):
        return False
    if isinstance(event, KvArrived | KvAborted | TransferEnded):
        return event.key in clock
    return True


def _only_decode(items: abc.Sequence[PassItem]) -> bool:
    return bool(items) and all(len(item.token_ids) == 1 and item.sample for item in items)
