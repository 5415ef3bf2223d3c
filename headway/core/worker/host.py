"""A DP unit's host memory: the KV in its blocks, and the swaps of the next pass."""

from __future__ import annotations

from headway.blocks import blocks_for
from headway.core.worker.sequence import Kv
from headway.forward_pass import Swap
from headway.request import StreamKey


class HostMemory:
    """Blocks ``first … first + num_blocks - 1`` of host memory, as large as the device's.

    ``swapped_out`` and ``swapped_in``: for the next pass to carry out. A pass in flight may use
    released blocks, so they become free when none is in flight (``settle``).
    """

    def __init__(self, num_blocks: int, block_size: int, *, first: int = 0) -> None:
        self._block_size = block_size
        self.num_free = num_blocks
        """Blocks that may be taken."""
        self._unused = first  # blocks from here on have never been used
        self._free: list[int] = []
        self._leaving: list[int] = []
        self.swapped_out: list[Swap] = []
        self.swapped_in: list[Swap] = []

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` to hold ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self._block_size) - len(table)
        if missing > self.num_free:
            return False
        self.num_free -= max(0, missing)
        for _ in range(missing):
            if self._free:
                table.append(self._free.pop())
            else:
                table.append(self._unused)
                self._unused += 1
        return True

    def release(self, kv: Kv) -> None:
        """Release its blocks."""
        self._leaving += kv.host_blocks
        kv.host_blocks = []

    def settle(self) -> None:
        """Free the released blocks; no pass may be in flight."""
        self.num_free += len(self._leaving)
        self._free += self._leaving
        self._leaving.clear()

    @property
    def is_settled(self) -> bool:
        """True if all released blocks are free."""
        return not self._leaving

    @property
    def has_swaps(self) -> bool:
        """True if the next pass has KV to copy."""
        return bool(self.swapped_out or self.swapped_in)

    def swap_out(self, key: StreamKey, kv: Kv) -> bool:
        """Plan a copy of KV to host memory, which frees its blocks; False without room."""
        if not self.grow(kv.host_blocks, kv.num_computed):
            return False
        self.swapped_out.append(self._swap(key, kv))
        return True

    def swap_in(self, key: StreamKey, kv: Kv) -> None:
        """Plan a copy of KV back into the blocks it has been given."""
        self.swapped_in.append(self._swap(key, kv))
        kv.is_returning = True
        self.release(kv)

    def _swap(self, key: StreamKey, kv: Kv) -> Swap:
        blocks = tuple(kv.blocks[: blocks_for(kv.num_computed, self._block_size)])
        return Swap(key, blocks, kv.num_computed, tuple(kv.host_blocks))
