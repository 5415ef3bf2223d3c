"""A running request's KV leaves in rounds: full blocks while it runs, the rest when it has stopped.

Each round sends what was computed during the one before it, so that little is left for the pause.
"""

from __future__ import annotations

from dataclasses import replace

from headway.core.worker.events import StartTransfer
from headway.core.worker.sequence import SequenceState
from headway.core.worker.unit import UnitState
from headway.messages import Handoff


def begins_round(sequence: SequenceState, block_size: int, most_rounds: int) -> bool:
    """Whether at least a block can be sent while it runs, and it has not been tried too often."""
    num_unsent = sequence.num_computed - sequence.num_sent
    held = sequence.blocks and not (sequence.is_over or sequence.returning)
    return bool(held) and num_unsent >= block_size and sequence.num_rounds < most_rounds


def send_round(unit: UnitState, sequence: SequenceState) -> StartTransfer:
    """Send the full blocks that have not been sent; they stay as they are meanwhile."""
    size = unit.pool.block_size
    first, stop = sequence.num_sent // size, sequence.num_computed // size
    sequence.sending = unit.pool.share(sequence.blocks[first:stop])
    assert sequence.leaving is not None, "it has been told where to go"
    part = start_transfer(sequence, sequence.leaving, stop * size, more=True)
    sequence.num_sent = stop * size
    sequence.num_rounds += 1
    return part


def end_round(unit: UnitState, sequence: SequenceState) -> None:
    """The round's blocks have been read."""
    unit.pool.release(sequence.sending)


def end_rounds(unit: UnitState, sequence: SequenceState) -> None:
    """The move is over, one way or the other."""
    unit.pool.release(sequence.sending)
    sequence.num_sent = sequence.num_rounds = 0


def start_transfer(
    sequence: SequenceState, handoff: Handoff, num_computed_tokens: int, *, more: bool = False
) -> StartTransfer:
    """What the sender is to do: tokens before ``num_sent`` have been sent already."""
    return StartTransfer(
        request=replace(
            sequence.request,
            output_token_ids=tuple(sequence.output),
            predicted_output_tokens=sequence.predicted_total or 0.0,
            is_predicted=sequence.prediction is not None,
        ),
        num_computed_tokens=num_computed_tokens,
        blocks=tuple(sequence.blocks),
        handoff=handoff,
        host_blocks=tuple(sequence.host_blocks),
        first_token=sequence.num_sent,
        more=more,
    )
