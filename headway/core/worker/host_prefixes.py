"""Names of prefixes whose KV is in host memory too: the prefix cache's second tier."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from headway.blocks import BlockHash
from headway.request import StreamKey


class HostPrefixes:
    """Cached blocks in host memory by name, and those that are still to be saved there.

    A block is ``idle`` while no pass reads it; idle blocks make room, least recently used first.
    A pass in flight may read (``begin_read``) or write (``begin_save``) the others.
    """

    def __init__(self, most_unsaved: int) -> None:
        self._most_unsaved = most_unsaved
        self._blocks: dict[BlockHash, int] = {}
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        self._unsaved: OrderedDict[BlockHash, None] = OrderedDict()
        self._saving: dict[int, BlockHash] = {}
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
        return name in self._blocks

    def count(self, names: Sequence[BlockHash]) -> int:
        """Count the leading names whose KV is here."""
        return next((n for n, name in enumerate(names) if name not in self._blocks), len(names))

    def take(self) -> int:
        """Forget the least recently used idle name; return its block."""
        name, _ = self._idle.popitem(last=False)
        return self._blocks.pop(name)

    def use(self, names: Sequence[BlockHash]) -> None:
        """Note a use of a chain on the device; what is not here is to be saved.

        The end of the chain becomes older than its beginning.
        """
        idle, blocks, missing = self._idle, self._blocks, list[BlockHash]()
        for name in reversed(names):
            if name in idle:
                idle.move_to_end(name)
            elif name not in blocks:
                missing.append(name)
        self._unsaved.update(dict.fromkeys(reversed(missing)))
        while len(self._unsaved) > self._most_unsaved:
            self._unsaved.popitem(last=False)

    def retire(self, names: Iterable[BlockHash]) -> None:
        """Let these names make room first, the last of them first; what is not here stays so."""
        for name in names:
            self._unsaved.pop(name, None)
            if name in self._idle:
                self._idle.move_to_end(name, last=False)

    def is_read_by(self, key: StreamKey) -> bool:
        """Return whether a request's pass, planned or in flight, reads from here."""
        return key in self._reads

    # --- copies from the device ---------------------------------------------------------

    def next_unsaved(self) -> BlockHash | None:
        """Return the name that has waited longest to be saved, and wait for it no more."""
        return self._unsaved.popitem(last=False)[0] if self._unsaved else None

    def begin_save(self, names: Iterable[BlockHash], blocks: Iterable[int]) -> None:
        """Note that a pass writes these blocks."""
        self._saving.update(zip(blocks, names, strict=True))

    def end_save(self, block: int, *, ok: bool) -> bool:
        """Note that a pass has written a block; return whether it holds KV from now on."""
        name = self._saving.pop(block)
        if not ok or name is None or name in self._blocks:
            return False
        self._blocks[name] = block
        self._idle[name] = None
        return True

    # --- copies to the device -----------------------------------------------------------

    def begin_read(self, key: StreamKey, names: Sequence[BlockHash]) -> tuple[int, ...]:
        """Note that a request's next pass reads these names; return their blocks."""
        blocks = tuple(self._blocks[name] for name in names)
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
            if not ok and self._blocks.get(name) == block:
                del self._blocks[name]
            self._num_readers[block] -= 1
            if self._num_readers[block]:
                continue
            del self._num_readers[block]
            if self._blocks.get(name) == block:
                self._idle[name] = None
            else:
                unused.append(block)
        return unused

    def forget(self, names: Iterable[BlockHash]) -> list[int]:
        """Forget names whose KV may be wrong; return blocks that hold nothing any more."""
        gone = set(names)
        for block, name in self._saving.items():
            if name in gone:
                self._saving[block] = None
        unused: list[int] = []
        for name in gone & self._blocks.keys():
            block = self._blocks.pop(name)
            if name in self._idle:
                del self._idle[name]
                unused.append(block)
        for name in gone & self._unsaved.keys():
            del self._unsaved[name]
        return sorted(unused)
