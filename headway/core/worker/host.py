"""A DP unit's host memory: which blocks hold whose KV, and what the next pass swaps."""

from __future__ import annotations

from headway.blocks import blocks_for
from headway.core.worker.sequence import SequenceState
from headway.forward_pass import Swap


class HostMemory:
    """Blocks ``first … first + num_blocks - 1`` of host memory, as large as the device's.

    ``swapped_out`` and ``swapped_in``: for the next pass to carry out. A pass may read and write
    blocks while it is in flight, so those that are let go come free when none is (``settle``).
    """

    def __init__(self, num_blocks: int, block_size: int, *, first: int = 0) -> None:
        self._block_size = block_size
        self._num_free = num_blocks
        self._unused = first  # it and those behind it have never been taken
        self._free: list[int] = []
        self._leaving: list[int] = []
        self.swapped_out: list[Swap] = []
        self.swapped_in: list[Swap] = []

    @property
    def num_free(self) -> int:
        """Blocks that may be taken."""
        return self._num_free

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` until it holds ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self._block_size) - len(table)
        if missing > self._num_free:
            return False
        self._num_free -= max(0, missing)
        for _ in range(missing):
            if self._free:
                table.append(self._free.pop())
            else:
                table.append(self._unused)
                self._unused += 1
        return True

    def release(self, sequence: SequenceState) -> None:
        """It needs its place no more; a swap that has not begun is called off."""
        if not sequence.host_blocks:
            return
        if sequence.swapping:
            self.swapped_out = [swap for swap in self.swapped_out if swap.key != sequence.key]
        self._leaving += sequence.host_blocks
        sequence.host_blocks = []

    def settle(self) -> None:
        """No pass is in flight: what was let go comes free."""
        self._num_free += len(self._leaving)
        self._free += self._leaving
        self._leaving.clear()

    @property
    def is_settled(self) -> bool:
        """Whether all that was let go has come free."""
        return not self._leaving

    # --- swaps ------------------------------------------------------------------------

    def swap_out(self, sequence: SequenceState) -> bool:
        """Let its KV leave its blocks, which are given up next; False without room."""
        if not self.grow(sequence.host_blocks, sequence.num_computed):
            return False
        sequence.swapping = True
        self.swapped_out.append(self._swap(sequence))
        return True

    def swap_in(self, sequence: SequenceState) -> None:
        """Let its KV come back into the blocks that it has been given."""
        self.swapped_in.append(self._swap(sequence))
        self._leaving += sequence.host_blocks
        sequence.host_blocks = []

    def _swap(self, sequence: SequenceState) -> Swap:
        blocks = tuple(sequence.blocks[: blocks_for(sequence.num_computed, self._block_size)])
        return Swap(sequence.key, blocks, sequence.num_computed, tuple(sequence.host_blocks))
