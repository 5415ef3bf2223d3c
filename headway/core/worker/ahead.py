"""A pass that is planned while another one is in flight: what that one does is taken for granted.

Its requests are planned as if it had ended: their tokens computed, and ``PENDING`` for each that
it draws, which the backend fills in. What nobody can know before, an end of sequence or a
cancellation, costs a row of the pass whose token is dropped. Nobody loses blocks meanwhile: where
somebody would have to yield, the next pass is planned when none is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headway.cluster import Role
from headway.core.worker.sequence import SequenceState
from headway.core.worker.state import WorkerState
from headway.forward_pass import PENDING, ForwardPass, PassItem


@dataclass(slots=True)
class Flight:
    """A pass in flight; ``dispatches`` are those that it is the first since.

    ``is_short``: whether somebody found no room in it, which only a plan with nothing in flight
    can make.
    """

    forward_pass: ForwardPass
    dispatches: list[int] = field(default_factory=list)
    is_short: bool = False

    def land(self, state: WorkerState, pass_id: int) -> list[tuple[PassItem, SequenceState]]:
        """It has ended: who was in it, and is in one pass less."""
        assert self.forward_pass.pass_id == pass_id, "passes end as they begin"
        in_pass = [(item, _sequence(state, item)) for item in self.forward_pass.items]
        for _, sequence in in_pass:
            sequence.num_passes -= 1
        return in_pass


def can_run_ahead(state: WorkerState, flight: Flight) -> bool:
    """Whether another pass may be planned behind this one, the only one in flight.

    Not while KV moves, who is leaving waits for its last pass, or a failed pass has left this one
    without a base. A prefill worker's passes are long, and a dispatch shall find their ends.
    """
    forward_pass = flight.forward_pass
    if state.info.role is Role.PREFILL or flight.is_short or forward_pass.num_steps > 1:
        return False
    if forward_pass.swapped_out or forward_pass.swapped_in:
        return False
    if not all(unit.host.is_settled for unit in state.units):
        return False
    is_decoding = False
    for item in forward_pass.items:
        sequence = _sequence(state, item)
        if sequence.leaving is not None or sequence.num_computed != item.start:
            return False
        is_decoding = is_decoding or item.sample
    return is_decoding


@contextmanager
def taken_for_granted(state: WorkerState, forward_pass: ForwardPass) -> Iterator[None]:
    """Inside, the pass has ended as far as its requests' tokens go; afterwards it is in flight."""
    before: list[tuple[SequenceState, int, int]] = []
    for item in forward_pass.items:
        sequence = _sequence(state, item)
        before.append((sequence, sequence.num_computed, sequence.attained_tokens))
        sequence.computed(len(item.token_ids))
        if item.sample:
            sequence.output.append(PENDING)
            sequence.pauses = sequence.is_full(state.max_len)
    try:
        yield
    finally:
        for item, (sequence, *counts) in zip(forward_pass.items, before, strict=True):
            sequence.num_computed, sequence.attained_tokens = counts
            sequence.pauses = False
            if item.sample:
                sequence.output.pop()


def _sequence(state: WorkerState, item: PassItem) -> SequenceState:
    sequence = state.find(item.key)
    assert sequence is not None, "sequences stay while they are in a pass"
    return sequence
