"""Fitting the pass-time model: measured passes in, coefficients and their error out.

Least squares on relative residuals, so that the many short decode passes are met as well as the few
long prefills. They are relative to the predicted time: relative to the measured one, passes that
were fast by chance would count more. Beyond 30 % a residual counts by its size and not by its
square (Huber), because an interrupted pass says nothing of passes. No coefficient is below 0: a
pass never gets faster by what is added to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.cost.pass_time import PassTime, Share
from headway.errors import invalid, require_between

TERMS = (
    "base",
    "per_prefill_token",
    "per_prefill_context",
    "per_request",
    "per_kv_token",
)
"""The coefficients in the order of a ``Share``'s fields, after the constant."""
MIN_PASSES = 8
_HUBER = 0.3
_ROUNDS = 20
_SETTLED = 1e-6
MOST_CONDITION = 1e8
"""Beyond it, columns of the measured passes are as good as the same: no fit could tell them."""


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """A measured forward pass of one DP unit: its contents, and its duration, seconds."""

    share: Share
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The model and how well it meets the passes; errors are shares of the measured time.

    ``standard_errors``: of each coefficient that was fitted, as a share of it. They take passes as
    independent of each other; on a machine whose speed drifts they are too small.
    """

    pass_time: PassTime
    r_squared: float
    median_error: float
    p95_error: float
    num_passes: int
    terms: tuple[str, ...]
    standard_errors: Mapping[str, float]


def fit_pass_time(passes: Sequence[MeasuredPass]) -> Fit:
    """Return the coefficients that fit the passes best; a term that no pass has stays 0.

    HeadwayError for too few passes, times that are no times, and passes too alike to tell the
    terms apart.
    """
    seconds = _checked(passes)
    rows = np.array([[1.0, *p.share] for p in passes])
    terms = (0, *(t for t in range(1, len(TERMS)) if rows[:, t].any()))
    weights = 1.0 / seconds
    _require_tellable(rows * weights[:, None], terms)
    coefficients = np.zeros(len(TERMS))
    for _ in range(_ROUNDS):
        before, coefficients = coefficients, _solve(rows, seconds, terms, weights)
        weights = _weights(rows @ coefficients, seconds)
        if np.allclose(coefficients, before, rtol=_SETTLED, atol=0.0):
            break
    predicted = rows @ coefficients
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    missed = float(((seconds - predicted) ** 2).sum())
    errors = np.abs(predicted - seconds) / seconds
    return Fit(
        PassTime(**dict(zip(TERMS, map(float, coefficients), strict=True))),  # type: ignore[arg-type]
        r_squared=1.0 - missed / spread if spread > 0 else float(missed == 0.0),
        median_error=float(np.median(errors)),
        p95_error=float(np.percentile(errors, 95)),
        num_passes=len(seconds),
        terms=tuple(TERMS[t] for t in terms),
        standard_errors=_standard_errors(rows, seconds, coefficients),
    )


def _checked(passes: Sequence[MeasuredPass]) -> NDArray[np.float64]:
    if len(passes) < MIN_PASSES:
        raise invalid("the number of passes", len(passes), f"at least {MIN_PASSES}: measure more")
    for number, measured in enumerate(passes):
        if not 0 < measured.seconds < float("inf"):
            limit = "a finite time over 0 s: leave the pass out"
            raise invalid(f"pass {number}'s time", measured.seconds, limit)
        for name, value in zip(Share._fields, measured.share, strict=True):
            require_between(f"pass {number}'s {name}", value, 0, 1e18)
    return np.array([p.seconds for p in passes])


def _weights(predicted: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each residual is multiplied with: relative ones, and less for outliers."""
    expected = np.maximum(predicted, 1e-3 * seconds)
    missed = np.abs(seconds / expected - 1.0)
    weights: NDArray[np.float64] = np.sqrt(_HUBER / np.maximum(missed, _HUBER)) / expected
    return weights


def _solve(
    rows: NDArray[np.float64],
    seconds: NDArray[np.float64],
    terms: Sequence[int],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Non-negative least squares: the most negative coefficient is left out until none is."""
    wanted = list(terms)
    weighted = rows * weights[:, None]
    scale = _scale(weighted)
    while True:
        solution, *_ = np.linalg.lstsq(
            weighted[:, wanted] / scale[wanted], seconds * weights, rcond=None
        )
        if solution.min(initial=0.0) >= 0.0:
            break
        wanted.pop(int(solution.argmin()))
    coefficients = np.zeros(len(TERMS))
    coefficients[wanted] = solution / scale[wanted]
    return coefficients


def _scale(weighted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length of each column, 1 for one that is 0."""
    return np.where(weighted.any(axis=0), np.linalg.norm(weighted, axis=0), 1.0)


def _standard_errors(
    rows: NDArray[np.float64], seconds: NDArray[np.float64], coefficients: NDArray[np.float64]
) -> Mapping[str, float]:
    """Return the errors of least squares, shares of the coefficients; those at 0 have none."""
    terms = [t for t in range(len(TERMS)) if coefficients[t] > 0.0]
    weights = _weights(rows @ coefficients, seconds)
    scaled = weights[:, None] * rows[:, terms] * coefficients[terms]  # every coefficient is 1
    missed = weights * seconds - scaled.sum(axis=1)
    variance = float((missed**2).sum()) / max(1, len(rows) - len(terms))
    spread = variance * np.diag(np.linalg.pinv(scaled.T @ scaled))
    return {TERMS[t]: float(error) for t, error in zip(terms, np.sqrt(spread), strict=True)}


def _require_tellable(weighted: NDArray[np.float64], terms: Sequence[int]) -> None:
    columns = (weighted / _scale(weighted))[:, list(terms)]
    condition = float(np.linalg.cond(columns)) if len(columns) >= len(terms) else float("inf")
    if not condition < MOST_CONDITION:
        names = ", ".join(TERMS[t] for t in terms)
        limit = (
            f"under {MOST_CONDITION:g}: the passes are too alike to tell {names} apart; measure "
            "prefill and decode at several sizes, each with the others held"
        )
        raise invalid("the passes' condition number", condition, limit)
