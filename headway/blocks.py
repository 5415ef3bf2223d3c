"""The paged KV pool's book-keeping: which blocks are free, who refers to which, what is cached."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

BlockHash = Hashable
"""Names the tokens of a full block *and of all blocks before it*: equal ones hold the same KV."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def chain_hashes(token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
    """A hash for every full block, each over the one before it and its own tokens."""
    hashes: list[BlockHash] = []
    before = 0
    for stop in range(block_size, len(token_ids) + 1, block_size):
        before = hash((before, tuple(token_ids[stop - block_size : stop])))
        hashes.append(before)
    return hashes


class BlockPool:
    """Blocks ``first … first + num_blocks - 1`` of a DP unit, with reference counts.

    Full blocks that were given a hash stay cached when nobody refers to them any more, until
    their room is needed: least recently used first. Raises ValueError where the caller's own
    books are wrong (freeing what is free).
    """

    def __init__(self, num_blocks: int, block_size: int, *, first: int = 0) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._first = first
        self._free = list(range(first + num_blocks - 1, first - 1, -1))
        self._refs = [0] * num_blocks
        self._cached: dict[BlockHash, int] = {}
        self._hashes: dict[int, BlockHash] = {}
        self._unused: dict[int, None] = {}  # cached, referred to by nobody; oldest first

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, cached ones included."""
        return len(self._free) + len(self._unused)

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` until it holds ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self.block_size) - len(table)
        if missing > self.num_free:
            return False
        if missing > 0:
            self._evict(missing - len(self._free))
            taken = self._free[-missing:]
            del self._free[-missing:]
            taken.reverse()
            for block in taken:
                self._refs[block - self._first] = 1
            table += taken
        return True

    def _evict(self, num_blocks: int) -> None:
        """Forget what has not been used for longest."""
        for _ in range(num_blocks):
            block = next(iter(self._unused))
            del self._unused[block]
            del self._cached[self._hashes.pop(block)]
            self._free.append(block)

    # --- prefix caching ---------------------------------------------------------------

    def count_cached(self, hashes: Sequence[BlockHash]) -> int:
        """How many blocks from the first one on are here."""
        return next((n for n, h in enumerate(hashes) if h not in self._cached), len(hashes))

    def adopt(self, table: list[int], hashes: Sequence[BlockHash]) -> int:
        """Begin an empty ``table`` with the blocks that are here; how many."""
        if table:
            raise ValueError("only an empty table can begin with cached blocks")
        count = self.count_cached(hashes)
        for block_hash in hashes[:count]:
            block = self._cached[block_hash]
            self._unused.pop(block, None)
            self._refs[block - self._first] += 1
            table.append(block)
        return count

    def cache(self, table: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        """The first blocks of ``table`` are full, and hold what ``hashes`` say."""
        for block, block_hash in zip(table, hashes, strict=False):
            if block_hash not in self._cached and block not in self._hashes:
                self._cached[block_hash] = block
                self._hashes[block] = block_hash

    def num_own(self, table: Sequence[int]) -> int:
        """Blocks of ``table`` that come free when it lets go of them."""
        if not self._hashes:
            return len(table)
        return sum(self._refs[block - self._first] == 1 for block in table)

    # --- references -------------------------------------------------------------------

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
                if block in self._hashes:
                    self._unused[block] = None
                else:
                    self._free.append(block)
        table.clear()
