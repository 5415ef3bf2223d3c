"""Decode units in order: what changes of a few units costs a look at those, not at the fleet."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from headway.cluster import UnitId
from headway.policies.placement.ahead import Floats
from headway.policies.placement.protocol import DecodeUnit, Score

Entry = tuple[tuple[float, ...], UnitId, DecodeUnit]
_MOST_RANKINGS = 16
"""Orders that a table keeps; costs that are measured anew make new ones."""


class _Sorted:
    """Numbers of all units, ascending, and each unit's own."""

    def __init__(self, read: Callable[[DecodeUnit], int], units: Sequence[DecodeUnit]) -> None:
        self._read = read
        self._own = {unit.unit: read(unit) for unit in units}
        self.values = sorted(self._own.values())

    def update(self, unit: DecodeUnit) -> None:
        before, after = self._own[unit.unit], self._read(unit)
        if before != after:
            del self.values[bisect_left(self.values, before)]
            insort(self.values, after)
            self._own[unit.unit] = after


class Ranking:
    """Units by score, the least first, then by id."""

    def __init__(self, score: Score, units: Sequence[DecodeUnit]) -> None:
        self._score = score
        self._entries: list[Entry] = sorted([(score(u), u.unit, u) for u in units])
        self._scores = {entry[1]: entry[0] for entry in self._entries}
        self._changed: dict[UnitId, DecodeUnit] = {}

    def update(self, unit: DecodeUnit) -> None:
        """Note a unit that has changed, or stands for an older one."""
        self._changed[unit.unit] = unit

    @property
    def entries(self) -> Sequence[Entry]:
        """The units in their order; those that have changed are put into their places first."""
        for name, unit in self._changed.items():
            score = self._score(unit)
            # A pair sorts right before the triple that begins with it; ids differ.
            del self._entries[bisect_left(self._entries, (self._scores[name], name))]
            insort(self._entries, (score, name, unit))
            self._scores[name] = score
        self._changed.clear()
        return self._entries


class _LoadsAhead:
    """Predicted loads of all units, a row each: (n, H + 1), tokens."""

    def __init__(self, rows: Sequence[Floats]) -> None:
        self.rows = np.stack(rows)

    def update(self, at: int, unit: DecodeUnit) -> None:
        assert unit.ahead is not None, "where one unit has a predicted load, all have"
        self.rows[at] = unit.ahead.loads


class UnitTable(Sequence[DecodeUnit]):
    """Decode units that keep their orders from one placement to the next.

    Whoever changes a unit, or puts another in its place, says so: ``update``.
    """

    def __init__(self, units: Sequence[DecodeUnit]) -> None:
        self._units = list(units)
        self._at = {unit.unit: place for place, unit in enumerate(self._units)}
        self._rankings: dict[Score, Ranking] = {}
        self._sorted: dict[Callable[[DecodeUnit], int], _Sorted] = {}
        self._ahead: _LoadsAhead | None = None
        self.shapes = {(u.block_size, u.num_blocks) for u in self._units}
        """Sizes of the units' pools: tokens of a block, blocks."""

    def __len__(self) -> int:
        return len(self._units)

    @overload
    def __getitem__(self, index: int) -> DecodeUnit: ...

    @overload
    def __getitem__(self, index: slice) -> list[DecodeUnit]: ...

    def __getitem__(self, index: int | slice) -> DecodeUnit | list[DecodeUnit]:
        return self._units[index]

    def __iter__(self) -> Iterator[DecodeUnit]:
        return iter(self._units)

    @property
    def most_free(self) -> int:
        """Free blocks of the unit that has the most of them; 0 without units."""
        return self._ascending(_free_blocks)[-1] if self._units else 0

    @property
    def loads(self) -> list[int]:
        """KV tokens of all units, ascending."""
        return self._ascending(_kv_tokens)

    def _ascending(self, read: Callable[[DecodeUnit], int]) -> list[int]:
        ordered = self._sorted.get(read)
        if ordered is None:
            ordered = self._sorted[read] = _Sorted(read, self._units)
        return ordered.values

    def ranking(self, score: Score) -> Ranking:
        """Return the units in the order of a score that reads the unit alone."""
        ranking = self._rankings.get(score)
        if ranking is None:
            if len(self._rankings) >= _MOST_RANKINGS:
                del self._rankings[next(iter(self._rankings))]
            ranking = self._rankings[score] = Ranking(score, self._units)
        return ranking

    @property
    def loads_ahead(self) -> Floats | None:
        """The units' predicted loads in their order, (n, H + 1); None where none are predicted."""
        if self._ahead is None:
            rows = [unit.ahead.loads for unit in self._units if unit.ahead is not None]
            if not rows or len(rows) < len(self._units):
                return None
            self._ahead = _LoadsAhead(rows)
        return self._ahead.rows

    def update(self, unit: DecodeUnit) -> None:
        """Put a unit that has changed, or stands for an older one, into its places."""
        at = self._at[unit.unit]
        self._units[at] = unit
        if self._ahead is not None:
            self._ahead.update(at, unit)
        for numbers in self._sorted.values():
            numbers.update(unit)
        for ranking in self._rankings.values():
            ranking.update(unit)


def _free_blocks(unit: DecodeUnit) -> int:
    return unit.num_free_blocks


def _kv_tokens(unit: DecodeUnit) -> int:
    return unit.kv_tokens
