"""One request after the other, each to the unit that is best once the others are placed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from headway.policies.placement.outliers import outlier_bound
from headway.policies.placement.protocol import Choice, DecodeUnit, Placeable, R, blocks_wanted
from headway.request import StreamKey

Score = Callable[[DecodeUnit], tuple[float, ...]]
Order = tuple[float, float, StreamKey]


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

    def able(self, request: Placeable) -> list[DecodeUnit]:
        """Units that are not barred and have the blocks."""
        wanted = {shape: blocks_wanted(request, *shape) for shape in self._shapes}
        if min(wanted.values(), default=1) > self._most_free:
            return []
        barred = request.barred
        return [
            u
            for u in self._units
            if wanted[u.block_size, u.num_blocks] <= u.num_free_blocks
            and not (barred and u.unit in barred)
        ]


def place_greedily(
    requests: Sequence[R],
    units: Sequence[DecodeUnit],
    *,
    score: Score,
    order: Callable[[Placeable], Order] = by_length,
    k: float | None = None,
    alarm: float = 0.0,
) -> list[Choice[R]]:
    """The least score among the units with room, then the lower id.

    With ``k``, units whose KV load is above the outlier bound and above ``alarm`` of their
    capacity are masked; all units with room are used if that leaves none.
    """
    rooms = Rooms(units)
    scores = {u.unit: score(u) for u in units}
    choices: list[Choice[R]] = []
    for request in sorted(requests, key=order):
        able = rooms.able(request)
        if not able:
            continue
        if k is not None:
            bound = outlier_bound(units, k)
            if bound < inf:
                able = [
                    u for u in able if u.kv_tokens <= max(bound, alarm * u.capacity_tokens)
                ] or able
        best = min(able, key=lambda u: (scores[u.unit], u.unit))
        choices.append(Choice(request, best.unit, scores[best.unit]))
        best.take(request)
        scores[best.unit] = score(best)
    return choices
