"""Curves of a sweep: what one gives at a place, and two of them over a span that both have.

A curve is points (x, y) of one run each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

Point = tuple[float, float]


def rate_at(ttft: Mapping[float, float], limit: float) -> float:
    """Return the rate at which mean TTFT reaches a limit, by interpolation."""
    points = sorted(ttft.items())
    for (low, before), (high, after) in pairwise(points):
        if before <= limit < after:
            return low + (high - low) * (limit - before) / (after - before)
    return points[-1][0] if limit >= points[-1][1] else points[0][0]


def value_at(curve: Iterable[Point], at: float) -> float:
    """Return y, by interpolation; that of the nearest end beyond the curve."""
    points = sorted(curve)
    for (low, before), (high, after) in pairwise(points):
        if low <= at <= high and low < high:
            return before + (after - before) * (at - low) / (high - low)
    return points[0][1] if at < points[0][0] else points[-1][1]


def frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points by x, each with the best y up to there: more never serves worse."""
    ordered = sorted(points)
    return list(zip((x for x, _ in ordered), accumulate((y for _, y in ordered), max), strict=True))


def place_of(curve: Sequence[Point], value: float) -> float | None:
    """Return the least x at which a frontier has ``value``; None where it never does."""
    if curve[0][1] >= value:
        return curve[0][0]
    for (low, before), (high, after) in pairwise(curve):
        if before < value <= after:
            return low + (high - low) * (value - before) / (after - before)
    return None


def mean_over(curve: Sequence[Point], low: float, high: float, num_points: int = 101) -> float:
    """Return the mean of y over a span of x."""
    width = (high - low) / (num_points - 1)
    return sum(value_at(curve, low + width * n) for n in range(num_points)) / num_points


def shared_span(one: Sequence[Point], other: Sequence[Point]) -> tuple[float, float]:
    """Return the x that two frontiers are compared over; both are known at its lower end.

    Beyond its last point a frontier keeps its best y, so the span ends where the longer one does.
    """
    return max(one[0][0], other[0][0]), max(one[-1][0], other[-1][0])
