"""The interquartile mask: which KV loads stand out."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.policies.placement.protocol import DecodeUnit

MIN_UNITS = 4
"""With fewer units there is no mask: quartiles of three loads say nothing."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear-interpolated percentile of ascending values; ``share`` in [0, 1]."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def outlier_bound(units: Sequence[DecodeUnit], k: float) -> float:
    """``Q3 + k·(Q3 − Q1)`` of the KV loads, tokens (Algorithm 3, step 1)."""
    if len(units) < MIN_UNITS:
        return inf
    return bound_of(sorted(u.kv_tokens for u in units), k)


def bound_of(loads: Sequence[int], k: float) -> float:
    """The same of ascending loads."""
    first, third = percentile(loads, 0.25), percentile(loads, 0.75)
    return third + k * (third - first)
