"""The 95 % interval of a mean change of few runs, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev

LEAST_RUNS = 3
"""Fewer say nothing about another."""

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 %, from 1 degree on
_FROM_TEN = 2.23  # for more degrees of freedom: never too small
_ALIKE = 1e-9  # share of the mean: less is rounding


def student(num_runs: int) -> float:
    """Return the standard errors in half of the interval; infinite for too few runs."""
    if num_runs < LEAST_RUNS:
        return inf
    degrees = num_runs - 1
    return _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _FROM_TEN


def half_interval(changes: Sequence[float]) -> float:
    """Return half of the interval of the mean change, in its unit; infinite where nobody knows.

    That is for too few runs, and for a change that is the same in all: how far another run would be
    from it, they do not say. No change at all in any of them is 0 ± 0: both sides are the same.
    """
    if len(changes) < LEAST_RUNS:
        return inf
    mean, spread = fmean(changes), stdev(changes)
    if mean and spread <= _ALIKE * abs(mean):
        return inf
    return student(len(changes)) * spread / sqrt(len(changes))
