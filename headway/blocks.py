"""The paged KV pool's book-keeping: which blocks are free, and who refers to which."""

from __future__ import annotations


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


class BlockPool:
    """Blocks ``first … first + num_blocks - 1`` of a DP unit, with reference counts.

    Raises ValueError where the caller's own books are wrong (freeing what is free).
    """

    def __init__(self, num_blocks: int, block_size: int, *, first: int = 0) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._first = first
        self._free = list(range(first + num_blocks - 1, first - 1, -1))
        self._refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free)

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` until it holds ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self.block_size) - len(table)
        if missing > len(self._free):
            return False
        if missing > 0:
            taken = self._free[-missing:]
            del self._free[-missing:]
            taken.reverse()
            for block in taken:
                self._refs[block - self._first] = 1
            table += taken
        return True

    def trim(self, table: list[int], num_tokens: int) -> None:
        """Give back the blocks at the end of ``table`` that ``num_tokens`` tokens do not need."""
        kept = blocks_for(num_tokens, self.block_size)
        surplus = table[kept:]
        del table[kept:]
        self.release(surplus)

    def share(self, table: list[int]) -> list[int]:
        """A second reference to every block of ``table``."""
        for block in table:
            if self._refs[block - self._first] < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._refs[block - self._first] += 1
        return list(table)

    def release(self, table: list[int]) -> None:
        """Drop one reference to every block of ``table`` and empty it."""
        for block in reversed(table):
            if self._refs[block - self._first] < 1:
                raise ValueError(f"block {block} is freed twice")
            self._refs[block - self._first] -= 1
            if self._refs[block - self._first] == 0:
                self._free.append(block)
        table.clear()
