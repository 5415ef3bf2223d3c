"""A journal of one DP unit's prefix cache: what came in and what went, in that order."""

from __future__ import annotations

from collections.abc import Sequence

from headway.blocks import BlockHash
from headway.core.worker.events import BlocksCached, BlocksDropped, TellKv
from headway.core.worker.sequence import Sequence as Request


class KvJournal:
    """Changes by the present event, until they are taken."""

    def __init__(self, unit: int, block_size: int) -> None:
        self._unit = unit
        self._block_size = block_size
        self._changes: list[BlocksCached | BlocksDropped] = []
        self._dropped: list[BlockHash] = []

    def cached(self, request: Request, numbers: Sequence[int]) -> None:
        """Note blocks of a request's chain, by their rising numbers, that are new in the cache."""
        self._settle()
        names, size = request.kv.hashes, self._block_size
        first = 0
        for n in range(1, len(numbers) + 1):
            if n < len(numbers) and numbers[n] == numbers[n - 1] + 1:
                continue
            start, stop = numbers[first], numbers[n - 1] + 1
            parent = names[start - 1] if start else None
            token_ids = tuple(request.tokens(start * size, stop * size))
            asked = request.request
            self._changes.append(
                BlocksCached(
                    *(tuple(names[start:stop]), parent, token_ids),
                    salt=asked.cache_salt,
                    adapter=asked.adapter,
                )
            )
            first = n

    def dropped(self, name: BlockHash) -> None:
        """Note a name that the cache has no more."""
        self._dropped.append(name)

    def _settle(self) -> None:
        if self._dropped:
            self._changes.append(BlocksDropped(tuple(self._dropped)))
            self._dropped.clear()

    def take(self) -> TellKv | None:
        """Return the changes since the last call, None without any."""
        self._settle()
        if not self._changes:
            return None
        changes = TellKv(self._unit, self._block_size, tuple(self._changes))
        self._changes.clear()
        return changes
