"""The KV memory of a DP unit, in tokens."""

from __future__ import annotations

from headway.cluster import WorkerInfo


class UnitMemory:
    """Tokens of KV memory: ``free`` ones, and those of dispatches that are ``pending``.

    ``host_free``: of host memory. ``leaving`` and ``returning``: what the next pass swaps.
    """

    def __init__(self, info: WorkerInfo, watermark: float, host_tokens: int) -> None:
        self.host_free = host_tokens
        self.leaving = self.returning = 0
        self.block_size = info.block_size
        self.capacity = self.free = info.num_blocks * info.block_size
        self.waste = info.block_size // 2
        self.pending = 0
        self._spare = int(watermark * info.num_blocks) * info.block_size

    def footprint(self, num_tokens: int) -> int:
        """Return the tokens of the blocks that hold so many."""
        return -(-num_tokens // self.block_size) * self.block_size

    def fits(self, size: int) -> bool:
        """Return whether so much may be admitted: above the watermark, unless it is empty."""
        free = self.free
        return size + (self._spare if free < self.capacity else 0) <= free

    def swapped(self) -> int:
        """Begin the swaps of a pass; return the tokens of the longer direction."""
        longest = max(self.leaving, self.returning)
        self.leaving = self.returning = 0
        return longest
