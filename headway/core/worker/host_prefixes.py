"""Names of prefixes whose KV is in host memory too: the prefix cache's second tier."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from headway.blocks import BlockHash
from headway.request import StreamKey


class HostPlace(NamedTuple):
    """A host block, and the place in its chain, from 0, of the KV in it."""

    block: int
    number: int


class HostPrefixes:
    """Cached blocks in host memory by name, and those that are still to be saved there.

    A block is ``idle`` while no pass reads it; idle blocks make room, least recently used first.
    A pass in flight may read (``begin_read``) or write (``begin_save``) the others.
    """

    def __init__(self, most_unsaved: int) -> None:
        self._most_unsaved = most_unsaved
        self._places: dict[BlockHash, HostPlace] = {}
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        self._unsaved: OrderedDict[BlockHash, int] = OrderedDict()  # by number in their chains
        self._saving: dict[int, tuple[BlockHash, int] | None] = {}
        self._reads: dict[StreamKey, Sequence[tuple[BlockHash, int]]] = {}
        self._num_readers: Counter[int] = Counter()

    @property
    def num_idle(self) -> int:
        """Blocks that may be taken."""
        return len(self._idle)

    @property
    def num_busy(self) -> int:
        """Blocks that a pass reads or writes."""
        return len(self._num_readers) + len(self._saving)

    def __contains__(self, name: BlockHash) -> bool:
        return name in self._places

    def count(self, names: Sequence[BlockHash]) -> int:
        """Count the leading names whose KV is here."""
        return next((n for n, name in enumerate(names) if name not in self._places), len(names))

    def take(self) -> int:
        """Forget the least recently used idle name; return its block."""
        name, _ = self._idle.popitem(last=False)
        return self._places.pop(name).block

    def use(self, names: Sequence[BlockHash], first: int = 0) -> None:
        """Note a use of a chain on the device, from its block ``first`` on.

        What is not here is to be saved. The end of the chain becomes older than its beginning.
        """
        idle, places, missing = self._idle, self._places, list[tuple[BlockHash, int]]()
        for number in range(len(names) - 1, -1, -1):
            name = names[number]
            if name in idle:
                idle.move_to_end(name)
            elif name not in places:
                missing.append((name, first + number))
        self._unsaved.update(reversed(missing))
        while len(self._unsaved) > self._most_unsaved:
            self._unsaved.popitem(last=False)

    def retire(self, names: Iterable[BlockHash]) -> None:
        """Let these names make room first, the last of them first; what is not here stays so."""
        for name in names:
            self._unsaved.pop(name, None)
            if name in self._idle:
                self._idle.move_to_end(name, last=False)

    def cached(self) -> Iterator[tuple[BlockHash, int]]:
        """Yield the names that are here, and how many blocks their chains have up to them.

        Least recently used first; those in use come last.
        """
        in_use = (name for name in self._places if name not in self._idle)
        for name in chain(self._idle, in_use):
            yield name, self._places[name].number + 1

    def is_read_by(self, key: StreamKey) -> bool:
        """Return whether a request's pass, planned or in flight, reads from here."""
        return key in self._reads

    # --- copies from the device ---------------------------------------------------------

    def next_unsaved(self) -> tuple[BlockHash, int] | None:
        """Return what has waited longest to be saved, and wait for it no more.

        It is a name, and the number of its block in its chain.
        """
        return self._unsaved.popitem(last=False) if self._unsaved else None

    def begin_save(self, names: Iterable[tuple[BlockHash, int]], blocks: Iterable[int]) -> None:
        """Note that a pass writes these blocks."""
        self._saving.update(zip(blocks, names, strict=True))

    def end_save(self, block: int, *, ok: bool) -> bool:
        """Note that a pass has written a block; return whether it holds KV from now on."""
        saved = self._saving.pop(block)
        if not ok or saved is None or saved[0] in self._places:
            return False
        name, number = saved
        self._places[name] = HostPlace(block, number)
        self._idle[name] = None
        return True

    # --- copies to the device -----------------------------------------------------------

    def begin_read(self, key: StreamKey, names: Sequence[BlockHash]) -> tuple[int, ...]:
        """Note that a request's next pass reads these names; return their blocks."""
        blocks = tuple(self._places[name].block for name in names)
        self._reads[key] = tuple(zip(names, blocks, strict=True))
        self._num_readers.update(blocks)
        for name in names:
            self._idle.pop(name, None)
        return blocks

    def end_read(self, key: StreamKey, *, ok: bool) -> list[int]:
        """Note the end of a read, if it is one; return blocks that hold nothing any more.

        What could not be read is forgotten.
        """
        unused: list[int] = []
        for name, block in reversed(self._reads.pop(key, ())):
            place = self._places.get(name)
            is_here = place is not None and place.block == block
            if is_here and not ok:
                del self._places[name]
            self._num_readers[block] -= 1
            if self._num_readers[block]:
                continue
            del self._num_readers[block]
            if is_here and ok:
                self._idle[name] = None
            else:
                unused.append(block)
        return unused

    def forget(self, names: Iterable[BlockHash]) -> list[int]:
        """Forget names whose KV may be wrong; return blocks that hold nothing any more."""
        gone = set(names)
        for block, saved in self._saving.items():
            if saved is not None and saved[0] in gone:
                self._saving[block] = None
        unused: list[int] = []
        for name in gone & self._places.keys():
            place = self._places.pop(name)
            if name in self._idle:
                del self._idle[name]
                unused.append(place.block)
        for name in gone & self._unsaved.keys():
            del self._unsaved[name]
        return sorted(unused)
