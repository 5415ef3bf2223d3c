"""Book-keeping of the paged KV pool: free blocks, references, and the prefix cache."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Protocol, cast

BlockHash = Hashable
"""The name of a full block *and of all blocks before it*: equal hashes mean equal KV."""

NAME_BYTES = 16
_TOKEN_BYTES = array("I").itemsize
_FINE_TOKENS, _FINE_SPAN, _COARSE_TOKENS = 64, 2048, 128
"""Gaps between waypoints, and the tokens in which they are narrow."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def salt_hash(salt: str, adapter: str = "") -> bytes:
    """Return the name of the empty beginning of prompts with this salt and this adapter.

    "": without. Who has another of either shares no beginning.
    """
    if not adapter:
        return blake2b(salt.encode(), digest_size=NAME_BYTES, person=b"salt").digest()
    both = blake2b(salt_hash(salt), digest_size=NAME_BYTES, person=b"adapter")
    both.update(adapter.encode())
    return both.digest()


def num_waypoints(num_tokens: int) -> int:
    """Return how many waypoints lie in the first ``num_tokens`` tokens.

    Waypoints are the positions at which the scheduler knows beginnings by name: every 64 tokens of
    the first 2,048, and every 128 behind them.
    """
    if num_tokens <= _FINE_SPAN:
        return num_tokens // _FINE_TOKENS
    return _FINE_SPAN // _FINE_TOKENS + (num_tokens - _FINE_SPAN) // _COARSE_TOKENS


def waypoint(number: int) -> int:
    """Return the position of the ``number``-th waypoint in tokens; 0 for the beginning itself."""
    num_fine = _FINE_SPAN // _FINE_TOKENS
    if number <= num_fine:
        return number * _FINE_TOKENS
    return _FINE_SPAN + (number - num_fine) * _COARSE_TOKENS


class PrefixNamer:
    """Names the beginnings of one sequence of tokens, as the tokens come.

    The name of a position is a hash of the name of the last waypoint before it and of all tokens
    behind that. So a name stands for all tokens up to it, and names of waypoints alone are made
    without those between. BLAKE2b, so that nobody can make up a prompt that passes for another's.
    """

    __slots__ = ("_hasher", "_left", "_name", "_num_waypoints")

    def __init__(self, salt: str = "", adapter: str = "") -> None:
        self._num_waypoints = 0
        self._begin(salt_hash(salt, adapter))

    @classmethod
    def behind(cls, number: int, name: bytes) -> PrefixNamer:
        """Return a namer that goes on behind the waypoint of this number and name."""
        namer = cls()
        namer._num_waypoints = number
        namer._begin(name)
        return namer

    def _begin(self, name: bytes) -> None:
        """Go on behind a waypoint of this name."""
        self._name: bytes | None = name
        self._hasher = blake2b(name, digest_size=NAME_BYTES)
        self._left = waypoint(self._num_waypoints + 1) - waypoint(self._num_waypoints)

    def advance(self, token_ids: Sequence[int]) -> bytes:
        """Return the name of everything up to and with these next tokens."""
        at, stop = 0, len(token_ids)
        while at < stop:
            part = token_ids[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            self._hasher.update(array("I", part).tobytes())
            if self._left:
                self._name = None
            else:
                self._num_waypoints += 1
                self._begin(self._hasher.digest())
        return self._hasher.copy().digest() if self._name is None else self._name


class NamesItself(Protocol):
    """A prompt without real tokens that names its beginnings (the simulator's)."""

    def prefix_names(self, ends: Iterable[int]) -> Sequence[BlockHash]:
        """Return the names of the beginnings that end there, as far as it has names."""


def waypoint_names(
    token_ids: Sequence[int], salt: str = "", adapter: str = ""
) -> tuple[BlockHash, ...]:
    """Return the names of a prompt's waypoints, without its last token (always computed).

    A range is a simulated prompt that shares nothing: it has no names.
    """
    if isinstance(token_ids, range):
        return ()
    ends = map(waypoint, range(num_waypoints(len(token_ids) - 1) + 1))
    if hasattr(token_ids, "prefix_names"):
        next(ends)
        return tuple(cast(NamesItself, token_ids).prefix_names(ends))
    data, name = memoryview(array("I", token_ids)).cast("B"), salt_hash(salt, adapter)
    names: list[BlockHash] = []
    for start, stop in pairwise(ends):  # as ``PrefixNamer`` does, without its copies
        hasher = blake2b(name, digest_size=NAME_BYTES)
        hasher.update(data[_TOKEN_BYTES * start : _TOKEN_BYTES * stop])
        name = hasher.digest()
        names.append(name)
    return tuple(names)


def block_names(
    token_ids: Sequence[int], block_size: int, namer: PrefixNamer | None = None
) -> list[BlockHash]:
    """Return the names of the full blocks of a prompt, or of the tokens behind ``namer``'s.

    The namer goes on behind these blocks.
    """
    namer = namer or PrefixNamer()
    stops = range(block_size, len(token_ids) + 1, block_size)
    return [namer.advance(token_ids[stop - block_size : stop]) for stop in stops]


class BlockPool:
    """Blocks ``first … first + num_blocks - 1`` of a DP unit, with reference counts.

    Full blocks with a hash stay cached after their last reference is dropped, until the space is
    needed: least recently used first, the end of a chain before its beginning, and first of all
    what no session needs any more (``retire``). Raises ValueError for misuse (freeing twice).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        first: int = 0,
        dropped: Callable[[BlockHash], None] | None = None,
    ) -> None:
        """``dropped`` hears of every name that is no longer cached."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._first = first
        self._dropped = dropped
        self._free = list(range(first + num_blocks - 1, first - 1, -1))
        self._refs = [0] * num_blocks
        self._cached: dict[BlockHash, int] = {}
        self._hashes: dict[int, BlockHash] = {}
        # Cached, without references; oldest first. A plain dict finds its first key ever slower.
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._successors: dict[BlockHash, BlockHash | None] = {}
        """The name that has followed a cached one in its chain, None for several."""
        self._ends: dict[int, int] = {}  # blocks up to and with a cached one
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
        if self._dropped is not None:
            self._dropped(name)

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
    ) -> list[int]:
        """Cache blocks ``start … stop - 1`` of ``table``, which are full, under their ``hashes``.

        ``stop`` is -1 for all that have a hash. A name that is cached already keeps its block.
        Return the places in ``table`` of those that were not.
        """
        fresh: list[int] = []
        most = min(len(table), len(hashes))
        for n in range(start, most if stop < 0 else min(stop, most)):
            if hashes[n] not in self._cached and table[n] not in self._hashes:
                self._cached[hashes[n]] = table[n]
                self._hashes[table[n]] = hashes[n]
                self._ends[table[n]] = n + 1
                if n and hashes[n - 1] in self._cached:
                    known = self._successors.setdefault(hashes[n - 1], hashes[n])
                    if known != hashes[n]:
                        self._successors[hashes[n - 1]] = None
                fresh.append(n)
        return fresh

    def cached(self) -> Iterator[tuple[BlockHash, int]]:
        """Yield the names that are cached, and where their blocks end in tokens.

        Least recently used first; those in use come last.
        """
        in_use = (block for block in self._hashes if block not in self._unused)
        for block in chain(self._unused, in_use):
            yield self._hashes[block], self._ends[block] * self.block_size

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
