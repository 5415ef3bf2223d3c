"""Which tokens of which sequences one forward pass computes, under chunk and KV blocks."""

from __future__ import annotations

from collections.abc import Sequence

from headway.blocks import blocks_for
from headway.core.worker_state import SequenceState, Stage, UnitState
from headway.messages import PassItem
from headway.policies.batching import Batching


class PassPlanner:
    """Plans one DP unit's share of a pass: the policy orders, the chunk and the pool bound.

    A sequence is admitted with blocks for all of its tokens and only while a watermark of
    blocks stays free for the growth of those that run (unless nothing runs). Growth takes
    blocks from the end of the policy's order: preempted, recomputed, never lost.
    """

    def __init__(self, batching: Batching, chunk_tokens: int, watermark: float) -> None:
        self._batching = batching
        self._chunk_tokens = chunk_tokens
        self._watermark = watermark

    def plan(self, unit: UnitState, *, now: float) -> list[PassItem]:
        """The unit's items, in the policy's order; marks the sequences as in the pass."""
        order = self._batching.order(unit.candidates(), now=now)
        budget = self._chunk_tokens
        items: list[PassItem] = []
        may_admit = True
        for position, sequence in enumerate(order):
            if budget == 0:
                break
            if sequence.stage is Stage.WAITING:
                # One that does not fit blocks later ones, never running ones.
                may_admit = may_admit and self._admit(unit, sequence)
                if not may_admit:
                    continue
            count = min(sequence.num_remaining, budget)
            if self._grow(unit, sequence, count, order[position + 1 :]):
                items.append(_item(sequence, count))
                budget -= count
        return items

    def _admit(self, unit: UnitState, sequence: SequenceState) -> bool:
        running = any(s.stage is not Stage.WAITING for s in unit.sequences.values())
        spare = int(self._watermark * unit.pool.num_blocks) if running else 0
        if blocks_for(sequence.num_tokens, unit.pool.block_size) + spare > unit.pool.num_free:
            return False
        unit.pool.grow(sequence.blocks, sequence.num_tokens)
        sequence.stage = Stage.RUNNING
        return True

    def _grow(
        self,
        unit: UnitState,
        sequence: SequenceState,
        count: int,
        later: Sequence[SequenceState],
    ) -> bool:
        """Blocks for ``count`` more tokens, taken from lower priorities where none is free."""
        victims = [s for s in later if s.stage is Stage.RUNNING]
        while not unit.pool.grow(sequence.blocks, sequence.num_computed + count):
            if not victims:
                return False
            unit.preempt(victims.pop())
        return True


def _item(sequence: SequenceState, count: int) -> PassItem:
    sequence.in_pass = True
    stop = sequence.num_computed + count
    return PassItem(
        key=sequence.key,
        token_ids=sequence.tokens(sequence.num_computed, stop),
        start=sequence.num_computed,
        block_table=sequence.blocks,
        sample=stop == sequence.num_tokens,
        sampling=sequence.request.sampling,
        prompt_token_ids=sequence.request.prompt_token_ids,
        output_token_ids=sequence.output,
    )
