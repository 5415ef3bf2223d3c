"""Greedy placement: each request to the unit that is best once the others are placed.

Only the unit that was chosen changes its score, so a heap keeps them in order, and a sorted list of
loads the quartiles: a placement costs what it looks at, not all units.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from headway.cluster import UnitId
from headway.metrics import percentile
from headway.policies.placement.protocol import (
    Choice,
    DecodeUnit,
    Placeable,
    R,
    Score,
    blocks_wanted,
)
from headway.policies.placement.table import Entry, Ranking, UnitTable
from headway.request import StreamKey

Order = tuple[float, float, StreamKey]
MIN_UNITS = 4
"""With fewer units there is no mask: quartiles of three loads say nothing."""


def by_length(request: Placeable) -> Order:
    """Longest first (Algorithm 3), then earliest."""
    return -request.num_tokens, request.arrival_at, request.key


def by_arrival(request: Placeable) -> Order:
    """Earliest first."""
    return 0, request.arrival_at, request.key


class Rooms:
    """Which units have room for a request; one look per shape of pool, not per unit."""

    def __init__(self, units: Sequence[DecodeUnit]) -> None:
        self._units = units
        self._shapes = {(u.block_size, u.num_blocks) for u in units}
        self._most_free = max((u.num_free_blocks for u in units), default=0)  # it only falls

    def wanted(self, request: Placeable) -> dict[tuple[int, int], int] | None:
        """Blocks that the request needs by shape of pool; None if no unit can have them."""
        wanted = {shape: blocks_wanted(request, *shape) for shape in self._shapes}
        return None if min(wanted.values(), default=1) > self._most_free else wanted

    def able(self, request: Placeable) -> list[DecodeUnit]:
        """Units that are open, not barred and have the blocks."""
        wanted = self.wanted(request)
        if wanted is None:
            return []
        barred = request.barred
        return [
            u
            for u in self._units
            if wanted[u.block_size, u.num_blocks] <= u.num_free_blocks
            and not (barred and u.unit in barred)
            and u.is_open
        ]


def place_each(
    requests: Sequence[R],
    units: Sequence[DecodeUnit],
    pick: Callable[[R, list[DecodeUnit]], Choice[R] | None],
) -> list[Choice[R]]:
    """Place each request, by arrival, on the unit that ``pick`` takes of those with room."""
    rooms, by_unit = Rooms(units), {unit.unit: unit for unit in units}
    choices: list[Choice[R]] = []
    for request in sorted(requests, key=by_arrival):
        able = rooms.able(request)
        choice = pick(request, able) if able else None
        if choice is not None:
            by_unit[choice.unit].take(request)
            choices.append(choice)
    return choices


def outlier_bound(loads: Sequence[int], k: float) -> float:
    """Return ``Q3 + k·(Q3 − Q1)`` of ascending KV loads, tokens (Algorithm 3, step 1)."""
    first, third = percentile(loads, 0.25), percentile(loads, 0.75)
    return third + k * (third - first)


class _Outliers:
    """Units whose KV load is above the outlier bound and above ``alarm`` of their capacity."""

    def __init__(
        self,
        units: Sequence[DecodeUnit],
        k: float | None,
        alarm: float,
        loads: list[int] | None = None,
    ) -> None:
        """Sort the units' loads, unless they are given; whoever gives them keeps them sorted."""
        self._k = k if k is not None and len(units) >= MIN_UNITS else None
        self._alarm = alarm
        self._loads = loads if loads is not None else []
        if self._k is not None and loads is None:
            self._loads = sorted(u.kv_tokens for u in units)
        self._bound = inf

    def draw(self) -> None:
        """Draw the mask anew."""
        if self._k is not None:
            self._bound = outlier_bound(self._loads, self._k)

    def masks(self, unit: DecodeUnit) -> bool:
        """Return whether a unit stands out."""
        return unit.kv_tokens > max(self._bound, self._alarm * unit.capacity_tokens)

    def moved(self, before: int, after: int) -> None:
        """Note that a unit's load has changed."""
        if self._k is not None:
            del self._loads[bisect_left(self._loads, before)]
            insort(self._loads, after)


def place_greedily(
    requests: Sequence[R],
    units: Sequence[DecodeUnit],
    *,
    score: Score,
    order: Callable[[Placeable], Order] = by_length,
    k: float | None = None,
    alarm: float = 0.0,
) -> list[Choice[R]]:
    """Place each request on the unit with room and the least score, then the lower id.

    With ``k``, units whose KV load is above the outlier bound and above ``alarm`` of their
    capacity are masked, and so are units whose memory will not suffice over the predicted horizon.
    All units with room are used if that leaves none. A table of units keeps an order for each
    score, so that equal scores should be equal objects.
    """
    if isinstance(units, UnitTable):
        outliers = _Outliers(units, k, alarm, units.loads if k is not None else None)
        return _place_by(units, sorted(requests, key=order), score, outliers)
    outliers = _Outliers(units, k, alarm)
    if len(requests) == 1:  # as nearly always: no heap for one look
        return _place_one(requests[0], units, score, outliers)
    rooms = Rooms(units)
    heap: list[Entry] = [(score(u), u.unit, u) for u in units]
    heapify(heap)
    choices: list[Choice[R]] = []
    for request in sorted(requests, key=order):
        wanted = rooms.wanted(request)
        if wanted is None:
            continue
        outliers.draw()
        entry = _take_best(heap, request, wanted, outliers)
        if entry is None:
            continue
        unit = entry[2]
        choices.append(Choice(request, unit.unit, entry[0]))
        before = unit.kv_tokens
        unit.take(request)
        outliers.moved(before, unit.kv_tokens)
        heappush(heap, (score(unit), unit.unit, unit))
    return choices


def _place_by(
    table: UnitTable, requests: Sequence[R], score: Score, outliers: _Outliers
) -> list[Choice[R]]:
    """Place as ``place_greedily`` does, by the orders that a table keeps."""
    ranking = table.ranking(score)
    choices: list[Choice[R]] = []
    for request in requests:
        wanted = wanted_blocks(request, table)
        if wanted is None:
            continue
        outliers.draw()
        entry = _best(ranking, request, wanted, outliers)
        if entry is not None:
            choices.append(Choice(request, entry[1], entry[0]))
            entry[2].take(request)
            table.update(entry[2])
    return choices


def _best(
    ranking: Ranking,
    request: Placeable,
    wanted: dict[tuple[int, int], int],
    outliers: _Outliers,
) -> Entry | None:
    """Return the best unit with room that is not masked, else the best one with room."""
    barred = request.barred
    masked = None
    for entry in ranking.entries:
        unit = entry[2]
        if not may_take(unit, wanted, barred):
            continue
        if not (outliers.masks(unit) or not unit.will_hold(request)):
            return entry
        masked = masked or entry
    return masked


def may_take(
    unit: DecodeUnit, wanted: Mapping[tuple[int, int], int], barred: Collection[UnitId]
) -> bool:
    """Return whether a unit has the blocks, is not barred and takes decode work."""
    has_room = wanted[unit.block_size, unit.num_blocks] <= unit.num_free_blocks
    return has_room and not (barred and unit.unit in barred) and unit.is_open


def wanted_blocks(request: Placeable, table: UnitTable) -> dict[tuple[int, int], int] | None:
    """Return the blocks that a request needs by shape of pool; None if no unit has them."""
    wanted = {shape: blocks_wanted(request, *shape) for shape in table.shapes}
    return None if min(wanted.values(), default=1) > table.most_free else wanted


def _place_one(
    request: R, units: Sequence[DecodeUnit], score: Score, outliers: _Outliers
) -> list[Choice[R]]:
    """Place a request as ``place_greedily`` does, by a single pass over the units."""
    outliers.draw()
    best: Entry | None = None
    masked: Entry | None = None
    barred = request.barred
    size = num_blocks = wanted = -1
    for unit in units:
        entry = score(unit), unit.unit, unit
        if best is not None and best[:2] < entry[:2]:
            continue
        if unit.block_size != size or unit.num_blocks != num_blocks:
            size, num_blocks = unit.block_size, unit.num_blocks
            wanted = blocks_wanted(request, size, num_blocks)
        if wanted > unit.num_free_blocks or (barred and unit.unit in barred) or not unit.is_open:
            continue
        if not (outliers.masks(unit) or not unit.will_hold(request)):
            best = entry
        elif masked is None or entry[:2] < masked[:2]:
            masked = entry
    choice = best or masked
    if choice is None:
        return []
    choice[2].take(request)
    return [Choice(request, choice[1], choice[0])]


def _take_best(
    heap: list[Entry],
    request: Placeable,
    wanted: dict[tuple[int, int], int],
    outliers: _Outliers,
) -> Entry | None:
    """Off the heap: the best unit with room that is not masked, else the best one with room."""
    barred = request.barred
    passed: list[Entry] = []
    best = masked = None
    while heap and best is None:
        entry = heappop(heap)
        unit = entry[2]
        has_room = wanted[unit.block_size, unit.num_blocks] <= unit.num_free_blocks
        if not has_room or (barred and unit.unit in barred) or not unit.is_open:
            passed.append(entry)
        elif outliers.masks(unit) or not unit.will_hold(request):
            masked = masked or entry
            passed.append(entry)
        else:
            best = entry
    if best is None and masked is not None:
        best = masked
        passed.remove(masked)
    for entry in passed:
        heappush(heap, entry)
    return best
