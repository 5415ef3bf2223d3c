"""Prompt beginnings that each DP unit has been sent: PBAA's ``hit(r, d)``, live.

This is the scheduler's estimate from its dispatches; a worker's own prefix cache decides what is
computed. A wrong estimate costs some balance and no correctness.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.blocks import salt_hash
from headway.cluster import UnitId
from headway.core.scheduler.places import Tracked
from headway.request import Request

GRANULE = 64
"""Tokens by which beginnings are compared."""

MAX_HOLDERS = 16
"""Most units that may hold a beginning for it to count: shared system prompts tell nothing."""

Beginning = int
"""The name of the first n * GRANULE tokens of a prompt: a hash of them all, and of its salt."""


def beginnings(request: Request) -> tuple[Beginning, ...]:
    """Return the prompt's beginnings, shortest first, without its last token (always computed)."""
    tokens, salt = request.prompt_token_ids, salt_hash(request.cache_salt)
    found: list[Beginning] = []
    before = 0 if salt is None else int.from_bytes(salt)
    for start in range(0, (len(tokens) - 1) // GRANULE * GRANULE, GRANULE):
        part = tokens[start : start + GRANULE]
        before = hash((before, part if isinstance(part, range) else tuple(part)))
        found.append(before)
    return tuple(found)


class Prefixes:
    """Beginnings held by one model's units, each unit up to the size of its KV."""

    def __init__(self) -> None:
        self._held: dict[UnitId, dict[Beginning, None]] = {}  # least recently sent first
        self._holders: dict[Beginning, dict[UnitId, None]] = {}

    def hits(self, entry: Tracked) -> Mapping[UnitId, int]:
        """Return the request's prompt tokens that each unit holds, for units that hold any."""
        found: dict[UnitId, int] = {}
        for number, beginning in enumerate(self._beginnings(entry), start=1):
            holders = self._holders.get(beginning)
            if holders is None:
                break
            if len(holders) <= MAX_HOLDERS:
                found.update(dict.fromkeys(holders, number * GRANULE))
        return found

    def sent(self, entry: Tracked, unit: UnitId, capacity_tokens: int) -> None:
        """Note that a unit, with a pool of ``capacity_tokens``, will compute the prompt."""
        held = self._held.setdefault(unit, {})
        for beginning in reversed(self._beginnings(entry)):  # a longer one is forgotten first
            held.pop(beginning, None)
            held[beginning] = None
            self._holders.setdefault(beginning, {})[unit] = None
        while len(held) > capacity_tokens // GRANULE:
            self._forget(unit, next(iter(held)))

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone, and its cache."""
        for unit in [unit for unit in self._held if unit.worker_id == worker_id]:
            for beginning in list(self._held[unit]):
                self._forget(unit, beginning)
            del self._held[unit]

    def _beginnings(self, entry: Tracked) -> tuple[Beginning, ...]:
        if entry.beginnings is None:
            entry.beginnings = () if entry.request is None else beginnings(entry.request)
        return entry.beginnings

    def _forget(self, unit: UnitId, beginning: Beginning) -> None:
        del self._held[unit][beginning]
        holders = self._holders[beginning]
        del holders[unit]
        if not holders:
            del self._holders[beginning]
