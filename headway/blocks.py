"""Book-keeping of the paged KV pool: free blocks, references, and the prefix cache."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b

BlockHash = Hashable
"""The name of a full block *and of all blocks before it*: equal hashes mean equal KV."""

_HASH_BYTES = 16


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def block_hash(before: BlockHash | None, token_ids: Iterable[int]) -> bytes:
    """Return the name of a full block behind the one called ``before`` (None for the first).

    Uses BLAKE2b, so that nobody can make up a prompt that passes for another's.
    """
    data = array("I", token_ids).tobytes()
    if isinstance(before, bytes):
        data = before + data
    return blake2b(data, digest_size=_HASH_BYTES).digest()


def salt_hash(salt: str) -> bytes | None:
    """Return the hash before the first block of requests with this salt; None for ""."""
    if not salt:
        return None
    return blake2b(salt.encode(), digest_size=_HASH_BYTES, person=b"salt").digest()


def chain_hashes(
    token_ids: Sequence[int], block_size: int, before: BlockHash | None = None
) -> list[BlockHash]:
    """Return a hash for every full block, over the previous hash and the block's tokens.

    ``before``: of the first block, as ``salt_hash`` makes it.
    """
    hashes: list[BlockHash] = []
    for stop in range(block_size, len(token_ids) + 1, block_size):
        before = block_hash(before, token_ids[stop - block_size : stop])
        hashes.append(before)
    return hashes


class BlockPool:
    """Blocks ``first … first + num_blocks - 1`` of a DP unit, with reference counts.

    Full blocks with a hash stay cached after their last reference is dropped, until the space is
    needed: least recently used first, the end of a chain before its beginning, and first of all
    what no session needs any more (``retire``). Raises ValueError for misuse (freeing twice).
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
        # Cached, without references; oldest first. A plain dict finds its first key ever slower.
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._successors: dict[BlockHash, BlockHash | None] = {}
        """The name that has followed a cached one in its chain, None for several."""
        self._num_shared_refs = 0  # references beyond a block's first
        self._num_promised = 0

    @property
    def num_free(self) -> int:
        """Blocks without a reference that are not promised, cached ones included."""
        return len(self._free) + len(self._unused) - self._num_promised

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Extend ``table`` to hold ``num_tokens``; False, and no change, without room."""
        missing = blocks_for(num_tokens, self.block_size) - len(table)
        if missing > self.num_free:
            return False
        if missing > 0:
            self._free_unused(missing + self._num_promised - len(self._free))
            taken = self._free[-missing:]
            del self._free[-missing:]
            taken.reverse()
            for block in taken:
                self._refs[block - self._first] = 1
            table += taken
        return True

    def promise(self, num_blocks: int) -> None:
        """Set so many free blocks aside in place of those promised before; there must be room."""
        self._num_promised = 0
        assert num_blocks <= self.num_free, "only free blocks are promised"
        self._free_unused(num_blocks - len(self._free))
        self._num_promised = num_blocks

    def redeem(self, table: list[int], num_tokens: int) -> None:
        """Extend ``table`` to hold ``num_tokens`` by blocks that were promised."""
        missing = blocks_for(num_tokens, self.block_size) - len(table)
        if missing > 0:
            self._num_promised -= missing
            assert self._num_promised >= 0, "so many blocks were promised"
            self.grow(table, num_tokens)

    def _free_unused(self, num_blocks: int) -> None:
        """Free the least recently used cached blocks."""
        for _ in range(num_blocks):
            block, _ = self._unused.popitem(last=False)
            self._drop(self._hashes.pop(block))
            self._free.append(block)

    def _drop(self, name: BlockHash) -> None:
        del self._cached[name]
        self._successors.pop(name, None)

    # --- prefix caching ---------------------------------------------------------------

    def count_cached(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading hashes whose blocks are cached."""
        return next((n for n, h in enumerate(hashes) if h not in self._cached), len(hashes))

    def adopt(self, table: list[int], hashes: Sequence[BlockHash]) -> int:
        """Fill an empty ``table`` with the cached leading blocks; return their number."""
        if table:
            raise ValueError("only an empty table can begin with cached blocks")
        count = self.count_cached(hashes)
        for name in hashes[:count]:
            table.append(self._cached[name])
        self.hold(table)
        return count

    def find(self, name: BlockHash) -> int | None:
        """Return the block that is cached under this name."""
        return self._cached.get(name)

    def hold(self, blocks: Iterable[int]) -> None:
        """Take a reference to each of these cached blocks."""
        for block in blocks:
            if block in self._unused:
                del self._unused[block]
            else:
                self._num_shared_refs += 1
            self._refs[block - self._first] += 1

    def num_in_use(self, hashes: Sequence[BlockHash]) -> int:
        """Count the blocks that ``adopt`` would take and that are in use, so cost no free block."""
        if not self._hashes:
            return 0
        count = self.count_cached(hashes)
        return sum(self._cached[name] not in self._unused for name in hashes[:count])

    def cache(
        self, table: Sequence[int], hashes: Sequence[BlockHash], start: int = 0, stop: int = -1
    ) -> None:
        """Cache blocks ``start … stop - 1`` of ``table``, which are full, under their ``hashes``.

        ``stop`` is -1 for all that have a hash. A name that is cached already keeps its block.
        """
        most = min(len(table), len(hashes))
        for n in range(start, most if stop < 0 else min(stop, most)):
            if hashes[n] not in self._cached and table[n] not in self._hashes:
                self._cached[hashes[n]] = table[n]
                self._hashes[table[n]] = hashes[n]
                if n and hashes[n - 1] in self._cached:
                    known = self._successors.setdefault(hashes[n - 1], hashes[n])
                    if known != hashes[n]:
                        self._successors[hashes[n - 1]] = None

    def forget(self, table: Iterable[int]) -> None:
        """Withdraw these blocks from the prefix cache."""
        for block in table:
            name = self._hashes.pop(block, None)
            if name is not None:
                self._drop(name)
                if block in self._unused:
                    del self._unused[block]
                    self._free.append(block)

    def num_own(self, table: Sequence[int]) -> int:
        """Count the blocks of ``table`` that become free when it is released."""
        if not self._num_shared_refs:
            return len(table)
        return sum(self._refs[block - self._first] == 1 for block in table)

    # --- references -------------------------------------------------------------------

    def share(self, table: list[int]) -> list[int]:
        """Return a second reference to every block of ``table``."""
        for block in table:
            if self._refs[block - self._first] < 1:
                raise ValueError(f"block {block} is free and cannot be shared")
            self._refs[block - self._first] += 1
        self._num_shared_refs += len(table)
        return list(table)

    def release(self, table: list[int]) -> None:
        """Drop one reference to every block of ``table`` and empty it."""
        refs, first, hashes, free = self._refs, self._first, self._hashes, self._free
        for block in reversed(table):
            left = refs[block - first] - 1
            if left < 0:
                raise ValueError(f"block {block} is freed twice")
            refs[block - first] = left
            if left:
                self._num_shared_refs -= 1
            elif block in hashes:
                self._unused[block] = None
            else:
                free.append(block)
        table.clear()

    def retire(self, table: list[int]) -> int:
        """Release blocks of a session that is over: what only it has used is the first to go.

        Return how many of the first others have used: those before the last fork of its chain,
        such as a system prompt.
        """
        forks = self._successors
        shared = [
            n for n, block in enumerate(table) if forks.get(self._hashes.get(block), "") is None
        ]
        own = table[shared[-1] + 1 :] if shared else list(table)
        self.release(table)
        for block in own:  # the end of the chain comes to stand before its beginning
            if block in self._unused:
                self._unused.move_to_end(block, last=False)
        return shared[-1] + 1 if shared else 0
