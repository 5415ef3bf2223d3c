"""Several decode steps in one pass: how many a pass may run, and their KV blocks.

Nothing but a step's own tokens changes between the steps: whatever arrives meanwhile is decided
on when the pass has ended. The simulator advances decode batches so; live passes have one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.blocks import blocks_for
from headway.cluster import Role
from headway.core.worker.sequence import SequenceState
from headway.core.worker.state import WorkerState
from headway.forward_pass import ForwardPass, PassItem


def reserve_steps(state: WorkerState, items: Sequence[PassItem], *, most: int) -> int:
    """How many steps this pass may have, at most ``most``; their blocks are reserved.

    One, unless all items decode, and go on doing so here. As many as there are blocks for: who
    needs some meanwhile has the pass cut.
    """
    if state.info.role is Role.PREFILL:
        return 1
    if most <= 1 or not items or any(len(item.token_ids) > 1 or not item.sample for item in items):
        return 1
    by_unit: dict[int, list[SequenceState]] = {}
    for item in items:
        sequence = state.find(item.key)
        assert sequence is not None, "the planner has just chosen it"
        most = min(most, sequence.request.sampling.max_tokens - len(sequence.output))
        most = min(most, state.max_len - sequence.num_tokens)
        by_unit.setdefault(sequence.unit, []).append(sequence)
    for unit, sequences in by_unit.items():
        pool = state.units[unit].pool
        most = _steps_within(sequences, pool.num_free, pool.block_size, most)
    if most <= 1:
        return 1
    for unit, sequences in by_unit.items():
        for sequence in sequences:
            state.units[unit].pool.grow(sequence.blocks, sequence.num_computed + most)
    return most


def return_steps(
    state: WorkerState, sequences: Iterable[SequenceState], num_steps: int = 0
) -> None:
    """Give back the blocks of steps that the pass did not have, or will not: all but these."""
    for sequence in sequences:
        num_tokens = sequence.num_computed + num_steps
        state.units[sequence.unit].pool.trim(sequence.blocks, num_tokens)


def cut_steps(state: WorkerState, forward_pass: ForwardPass, num_steps: int) -> None:
    """The pass in flight will have no more steps than these."""
    if forward_pass.num_steps > 1:
        found = [state.find(item.key) for item in forward_pass.items]
        return_steps(state, [s for s in found if s is not None], num_steps)


def _steps_within(sequences: Sequence[SequenceState], room: int, block_size: int, most: int) -> int:
    """The most steps whose blocks fit ``room``, by bisection."""

    def missing(num_steps: int) -> int:
        return sum(
            blocks_for(s.num_computed + num_steps, block_size) - len(s.blocks) for s in sequences
        )

    if missing(most) <= room:
        return most
    low, high = 0, most  # ``low`` steps fit, ``high`` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if missing(middle) <= room else (low, middle)
    return low
