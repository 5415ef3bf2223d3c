"""Several decode steps in one pass: their number, and their KV blocks.

Between the steps only their own tokens change: everything that arrives meanwhile is handled when
the pass has ended. The simulator advances decode batches this way; live passes have one step.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable

from headway.blocks import blocks_for
from headway.cluster import Role
from headway.core.worker.flight import Flight, Share
from headway.core.worker.sequence import Sequence
from headway.core.worker.state import WorkerState


def reserve_steps(state: WorkerState, in_pass: abc.Sequence[Share], *, most: int) -> int:
    """Return the number of steps of a pass, at most ``most``, and reserve their blocks.

    It is 1 unless all requests decode here and continue to, else as many as there are blocks for. A
    request that needs some of these blocks meanwhile causes the pass to be cut.
    """
    if state.info.role is Role.PREFILL or most <= 1 or not in_pass:
        return 1
    if any(len(item.token_ids) > 1 or not item.sample for item, _ in in_pass):
        return 1
    by_unit: dict[int, list[Sequence]] = {}
    for _, sequence in in_pass:
        most = min(most, sequence.request.sampling.max_tokens - len(sequence.output))
        most = min(most, state.max_len - sequence.num_tokens)
        by_unit.setdefault(sequence.unit, []).append(sequence)
    for unit, sequences in by_unit.items():
        pool = state.units[unit].pool
        most = _steps_within(sequences, pool.num_free, pool.block_size, most)
    if most <= 1:
        return 1
    for _, sequence in in_pass:
        kv = sequence.kv
        state.units[sequence.unit].pool.grow(kv.blocks, kv.num_computed + most)
    return most


def return_steps(state: WorkerState, sequences: Iterable[Sequence], num_steps: int = 0) -> None:
    """Release the blocks reserved for steps beyond ``num_steps``."""
    for sequence in sequences:
        kv = sequence.kv
        state.units[sequence.unit].pool.trim(kv.blocks, kv.num_computed + num_steps)


def cut_steps(state: WorkerState, flight: Flight, num_steps: int) -> None:
    """Cut the pass in flight to ``num_steps`` steps."""
    if flight.forward_pass.num_steps > 1:
        return_steps(state, [sequence for _, sequence in flight.in_pass], num_steps)


def _steps_within(sequences: abc.Sequence[Sequence], room: int, block_size: int, most: int) -> int:
    """Return the most steps whose blocks fit ``room``, by bisection."""

    def missing(num_steps: int) -> int:
        return sum(
            blocks_for(s.kv.num_computed + num_steps, block_size) - len(s.kv.blocks)
            for s in sequences
        )

    if missing(most) <= room:
        return most
    low, high = 0, most  # ``low`` steps fit, ``high`` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if missing(middle) <= room else (low, middle)
    return low
