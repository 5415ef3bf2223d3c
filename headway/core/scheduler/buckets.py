"""Requests by bucket on each decode unit, counted as they come and go.

A placement by buckets reads them of all units. Counting all live requests for each placement would
cost more the larger the fleet is.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.cluster import UnitId
from headway.core.scheduler.places import Moving, OnUnit, Tracked
from headway.cost.buckets import NUM_BUCKETS
from headway.request import StreamKey

_NOWHERE: tuple[UnitId | None, int] = (None, 0)


class BucketCounts:
    """Requests that decode on each unit or are moving to it; ``changed`` is told of its units."""

    def __init__(self, changed: Callable[[UnitId], None]) -> None:
        self._changed = changed
        self._counts: dict[UnitId, list[int]] = {}
        self._counted: dict[StreamKey, tuple[UnitId | None, int]] = {}
        self._adopted: dict[StreamKey, Tracked] = {}
        """Requests without their prompts: the bucket of each follows its tokens."""

    def note(self, entry: Tracked) -> None:
        """Count a request where it is now."""
        if entry.request is None:
            self._adopted[entry.key] = entry
        is_there = isinstance(entry.place, (OnUnit, Moving))
        self._count(entry, entry.target or entry.at if is_there else None)

    def forget(self, entry: Tracked) -> None:
        """Count a request no longer."""
        self._adopted.pop(entry.key, None)
        self._count(entry, None)
        self._counted.pop(entry.key, None)

    def look(self) -> None:
        """Count adopted requests by what is known of them now."""
        for entry in list(self._adopted.values()):
            if entry.request is not None:
                del self._adopted[entry.key]
            self.note(entry)

    def of(self, unit: UnitId) -> list[int]:
        """Return a unit's requests by bucket."""
        return list(self._counts.get(unit, ())) or [0] * NUM_BUCKETS

    def _count(self, entry: Tracked, at: UnitId | None) -> None:
        before, now = self._counted.get(entry.key, _NOWHERE), (at, entry.bucket if at else 0)
        if before == now:
            return
        self._counted[entry.key] = now
        for (unit, bucket), more in ((before, -1), (now, 1)):
            if unit is not None:
                counts = self._counts.setdefault(unit, [0] * NUM_BUCKETS)
                counts[bucket] += more
                if not any(counts):
                    del self._counts[unit]
                self._changed(unit)
