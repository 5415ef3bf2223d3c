"""Passes in flight: their requests, and the planning of the next pass behind one of them.

The next pass treats the one in flight as ended: its tokens computed, and ``PENDING`` for each that
it draws, which the backend fills in. A request that ends or is cancelled meanwhile costs a row,
whose token is dropped. Such a plan never preempts: if it would have to, the next pass is planned
when none is in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.cluster import Role
from headway.core.worker.batch import ClockedBatch
from headway.core.worker.departures import call_off, leave_all
from headway.core.worker.events import PassFailed, WorkerAction
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState
from headway.cost.pass_time import Share as Work
from headway.forward_pass import PENDING, SAVED, ForwardPass, PassItem
from headway.request import StreamKey

Share = tuple[PassItem, Sequence]
"""A request's part of a pass."""


@dataclass(slots=True, eq=False)
class Flight:
    """A pass in flight."""

    forward_pass: ForwardPass
    in_pass: list[Share]
    swapped_out: list[Sequence]
    """Requests whose KV it copies to host memory."""
    returning: list[Sequence]
    """Requests whose KV comes back during it."""
    dispatches: list[int]
    """Dispatches since the pass before."""
    is_short: bool
    """True if a request found no room that a preemption could have made."""
    clock: ClockedBatch | None = None
    """The batch that it leaps with; requests that go on without a look are not ``in_pass``."""

    def __post_init__(self) -> None:
        for _, sequence in self.in_pass:
            sequence.num_passes += 1
        for sequence in self.returning:
            sequence.num_passes += 1

    def include(self, shares: Iterable[Share]) -> None:
        """Let requests that go on without a look be in the pass: something concerns them."""
        for share in shares:
            share[1].num_passes += 1
            self.in_pass.append(share)

    def works(self) -> list[Work]:
        """Return what each DP unit with work has in its first step."""
        return _shares_of(self.in_pass) if self.clock is None else self.clock.works()

    def complete(self, pass_id: int) -> None:
        """Note that it has ended: its requests are in one pass less."""
        assert self.forward_pass.pass_id == pass_id, "passes end as they begin"
        for sequence in (*(sequence for _, sequence in self.in_pass), *self.returning):
            sequence.num_passes -= 1
            sequence.kv.is_returning = False

    def end_swaps(
        self,
        state: WorkerState,
        failed: Collection[StreamKey] = (),
        blamed: Collection[StreamKey] = (),
    ) -> list[WorkerAction]:
        """Note that KV has been copied, except for the ``failed``; send requests waiting to leave.

        The move of a request that was cancelled during its swap is called off. Prefixes that the
        ``blamed`` have read are no longer trusted.
        """
        actions: list[WorkerAction] = []
        for unit in state.units:
            unit.end_copies(self.forward_pass, blamed)
        for sequence in self.swapped_out:
            if sequence.stage is Stage.SWAPPING_OUT:
                has_failed = sequence.key in failed
                state.units[sequence.unit].end_swap(sequence, has_failed=has_failed)
            actions += _go_or_stay(state, sequence, has_kv=bool(sequence.kv.host_blocks))
        for sequence in self.returning:
            if sequence.ended is not None:
                state.finish(sequence, sequence.ended)
            else:
                has_failed = sequence.key in failed
                state.units[sequence.unit].end_swap(sequence, has_failed=has_failed)
            actions += _go_or_stay(state, sequence, has_kv=bool(sequence.kv.blocks))
        return actions

    def fail(self, state: WorkerState, event: PassFailed) -> list[WorkerAction]:
        """End the requests at fault (all of them if none is named); reschedule the others."""
        self.complete(event.pass_id)
        swapped = {sequence.key for sequence in (*self.swapped_out, *self.returning)}
        reading = self._reading(state)
        # A failure without keys may have come before the swaps: recomputing is safe.
        failed = {*reading, *(event.keys or swapped)}
        actions = self.end_swaps(state, failed, {*event.keys, SAVED})
        in_pass = () if event.keys else {item.key for item, _ in self.in_pass}
        for sequence in reading.values():
            if sequence.stage is Stage.RUNNING and sequence.key not in in_pass:
                state.units[sequence.unit].lose_read(sequence)
        blamed = set(event.keys) & ({item.key for item, _ in self.in_pass} | swapped | {SAVED})
        for item, sequence in self.in_pass:
            if sequence.ended is not None:
                state.finish(sequence, sequence.ended)
            elif item.start != sequence.kv.num_computed:
                continue  # the pass before it has failed, or a copy, not this request
            elif not blamed or item.key in blamed:
                state.fail(sequence, event.message, event.code)
            actions += _go_or_stay(state, sequence)
        return actions

    def _reading(self, state: WorkerState) -> dict[StreamKey, Sequence]:
        """Return the requests that read cached prefixes from host memory in it."""
        sequences = [state.find(swap.key) for swap in self.forward_pass.swapped_in]
        units = state.units
        return {
            sequence.key: sequence
            for sequence in sequences
            if sequence is not None and units[sequence.unit].host.prefixes.is_read_by(sequence.key)
        }

    def can_be_followed(self, state: WorkerState) -> bool:
        """Return whether another pass may be planned behind this one, the only one in flight.

        False while KV is copied, while a departing request waits for its last pass, or if this pass
        was planned behind one that failed. A prefill worker never runs ahead: its passes are long,
        and a dispatch should find their ends.
        """
        forward_pass = self.forward_pass
        if state.info.role is Role.PREFILL or self.is_short or forward_pass.leap is not None:
            return False
        if forward_pass.swapped_out or forward_pass.swapped_in:
            return False
        if not all(unit.host.is_settled for unit in state.units):
            return False
        is_decoding = False
        for item, sequence in self.in_pass:
            if sequence.is_leaving or sequence.kv.num_computed != item.start:
                return False
            is_decoding = is_decoding or item.sample
        return is_decoding


def _go_or_stay(
    state: WorkerState, sequence: Sequence, *, has_kv: bool = True
) -> list[WorkerAction]:
    """Send a request that waited to leave, or call its move off if it has ended or lost its KV."""
    if sequence.ended is None and has_kv:
        return leave_all(state, [sequence])
    return call_off(sequence)


@contextmanager
def taken_for_granted(in_pass: list[Share]) -> Iterator[None]:
    """Count a pass's tokens as computed and drawn, while the next one is planned."""
    before: list[tuple[int, int]] = []
    for item, sequence in in_pass:
        before.append((sequence.kv.num_computed, sequence.attained_tokens))
        sequence.computed(len(item.token_ids))
        if item.sample:
            sequence.output.append(PENDING)
    try:
        yield
    finally:
        for (item, sequence), counts in zip(in_pass, before, strict=True):
            sequence.kv.num_computed, sequence.attained_tokens = counts
            if item.sample:
                sequence.output.pop()


def _shares_of(in_pass: Iterable[Share]) -> list[Work]:
    """Return what each DP unit with work has in the first step of a pass."""
    units: dict[int, list[PassItem]] = {}
    for item, sequence in in_pass:
        units.setdefault(sequence.unit, []).append(item)
    return [work_of(items) for items in units.values()]


def work_of(items: Iterable[PassItem]) -> Work:
    """Return what a pass computes for these items."""
    tokens = context = batch = kv_tokens = 0
    for item in items:
        count = len(item.token_ids)
        if count == 1 and item.sample:
            batch += 1
            kv_tokens += item.start + 1
        else:
            tokens += count
            context += count * item.start
    return Work(tokens, context, batch, kv_tokens)
