"""The beginnings that an endpoint's KV events tell of, under the names that the scheduler uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.blocks import BlockHash, PrefixNamer, salt_hash, waypoint
from headway.core.picker.events import StoredBlocks


@dataclass(frozen=True, slots=True)
class _Block:
    """A cached block; ``number`` and ``name`` of the last waypoint in its chain."""

    end: int
    """Its end in tokens of its chain."""
    number: int
    name: bytes
    tail: tuple[int, ...]
    """Tokens of its chain behind that waypoint."""
    own: tuple[BlockHash, ...]
    """Names of the waypoints that lie in it."""

    @property
    def waypoints(self) -> list[tuple[BlockHash, int]]:
        """The names of the waypoints that lie in it, with their numbers."""
        first = self.number - len(self.own) + 1
        return list(zip(self.own, range(first, self.number + 1), strict=True))


class KvChains:
    """The blocks of one endpoint. Blocks whose parent is unknown have no names."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, _Block] = {}

    def store(self, stored: StoredBlocks) -> list[tuple[BlockHash, int]]:
        """Return the names of the waypoints that these blocks fill, with their numbers."""
        if stored.parent is None:
            block = _Block(0, 0, salt_hash(stored.salt), (), ())
        elif stored.parent in self._blocks:
            block = self._blocks[stored.parent]
        else:
            return []
        waypoints: list[tuple[BlockHash, int]] = []
        size = stored.block_size
        for n, name in enumerate(stored.hashes):
            token_ids = tuple(stored.token_ids[n * size : (n + 1) * size])
            block = _behind(block, token_ids)
            self._blocks[name] = block
            waypoints += block.waypoints
        return waypoints

    def names(self) -> list[tuple[BlockHash, int]]:
        """Return the names of all waypoints that it has, with their numbers."""
        return [each for block in self._blocks.values() for each in block.waypoints]

    def remove(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """Return the names of the waypoints that went with these blocks."""
        gone = (self._blocks.pop(name, None) for name in hashes)
        return [name for block in gone if block is not None for name in block.own]

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()


def _behind(block: _Block, token_ids: tuple[int, ...]) -> _Block:
    """Return the block of these tokens behind another."""
    end, number, name = block.end + len(token_ids), block.number, block.name
    tail, own = block.tail + token_ids, list[BlockHash]()
    while end >= waypoint(number + 1):
        length = waypoint(number + 1) - waypoint(number)
        name = PrefixNamer.behind(number, name).advance(tail[:length])
        number, tail = number + 1, tail[length:]
        own.append(name)
    return _Block(end, number, name, tail, tuple(own))
