"""Fitting the pass-time model: measured passes in, coefficients and their error out.

Least squares on relative residuals: every pass counts by its own time, so that the many short
decode passes are met as well as the few long prefills. No coefficient is below 0: a pass never
gets faster by what is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.cost.pass_time import SLOWEST_UNIT, PassTime, Share
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
MOST_CONDITION = 1e8
"""Beyond it, columns of the measured passes are as good as the same: no fit could tell them."""


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """A measured forward pass: each DP unit's share, and its duration, seconds."""

    shares: Sequence[Share]
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The model and how well it meets the passes; errors are shares of the measured time."""

    pass_time: PassTime
    r_squared: float
    median_error: float
    p95_error: float
    num_passes: int
    terms: tuple[str, ...]


def fit_pass_time(passes: Sequence[MeasuredPass], *, gate: str = SLOWEST_UNIT) -> Fit:
    """Return the coefficients that fit the passes best; a term that no pass has stays 0.

    Units in lock-step are fitted on the greatest of each term (``each-term``), or on the unit
    that is slowest under the model so far, until it settles (``slowest-unit``). HeadwayError for
    too few passes, times that are no times, and passes too alike to tell the terms apart.
    """
    seconds = _checked(passes)
    rows = _greatest(passes)
    terms = (0, *(t for t in range(1, len(TERMS)) if rows[:, t].any()))
    coefficients = _solve(rows, seconds, terms)
    model = _model(coefficients, gate)
    for _ in range(8 if gate == SLOWEST_UNIT else 0):
        slowest = np.array([[1.0, *_slowest(model, p.shares)] for p in passes])
        if np.array_equal(slowest, rows):
            break
        rows = slowest
        model = _model(_solve(rows, seconds, terms), gate)
    return _judge(model, passes, seconds, tuple(TERMS[t] for t in terms))


def judge(model: PassTime, passes: Sequence[MeasuredPass]) -> Fit:
    """Return how well a given model fits passes; HeadwayError as ``fit_pass_time``."""
    terms = tuple(name for name in TERMS if getattr(model, name))
    return _judge(model, passes, _checked(passes), terms)


def _checked(passes: Sequence[MeasuredPass]) -> NDArray[np.float64]:
    if len(passes) < MIN_PASSES:
        raise invalid("the number of passes", len(passes), f"at least {MIN_PASSES}: measure more")
    for number, measured in enumerate(passes):
        if not measured.shares:
            raise invalid(f"pass {number}", "empty", "one with something in it: leave it out")
        if not 0 < measured.seconds < float("inf"):
            limit = "a finite time over 0 s: leave the pass out"
            raise invalid(f"pass {number}'s time", measured.seconds, limit)
        for share in measured.shares:
            for name, value in zip(Share._fields, share, strict=True):
                require_between(f"pass {number}'s {name}", value, 0, 1e18)
    return np.array([p.seconds for p in passes])


def _greatest(passes: Sequence[MeasuredPass]) -> NDArray[np.float64]:
    """A row a pass: 1, then the greatest of each term over the units."""
    return np.array([[1.0, *(max(t) for t in zip(*p.shares, strict=True))] for p in passes])


def _slowest(model: PassTime, shares: Sequence[Share]) -> Share:
    return max(shares, key=lambda share: (model.seconds(*share), share))


def _solve(
    rows: NDArray[np.float64], seconds: NDArray[np.float64], terms: Sequence[int]
) -> NDArray[np.float64]:
    """Non-negative least squares: the most negative coefficient is left out until none is."""
    wanted = list(terms)
    weighted = rows / seconds[:, None]
    scale = np.where(weighted.any(axis=0), np.linalg.norm(weighted, axis=0), 1.0)
    _require_tellable(weighted[:, wanted] / scale[wanted], wanted)
    while True:
        found, *_ = np.linalg.lstsq(
            weighted[:, wanted] / scale[wanted], np.ones(len(seconds)), rcond=None
        )
        if found.min(initial=0.0) >= 0.0:
            break
        wanted.pop(int(found.argmin()))
    coefficients = np.zeros(len(TERMS))
    coefficients[wanted] = found / scale[wanted]
    return coefficients


def _require_tellable(columns: NDArray[np.float64], terms: Sequence[int]) -> None:
    condition = float(np.linalg.cond(columns)) if len(columns) >= len(terms) else float("inf")
    if not condition < MOST_CONDITION:
        names = ", ".join(TERMS[t] for t in terms)
        limit = (
            f"under {MOST_CONDITION:g}: the passes are too alike to tell {names} apart; measure "
            "prefill and decode at several sizes, each with the others held"
        )
        raise invalid("the passes' condition number", condition, limit)


def _model(coefficients: NDArray[np.float64], gate: str) -> PassTime:
    values = dict(zip(TERMS, (float(c) for c in coefficients), strict=True))
    return PassTime(**values, gate=gate)


def _judge(
    model: PassTime,
    passes: Sequence[MeasuredPass],
    seconds: NDArray[np.float64],
    terms: tuple[str, ...],
) -> Fit:
    predicted = np.array([model.lock_step(p.shares) for p in passes])
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    missed = float(((seconds - predicted) ** 2).sum())
    errors = np.abs(predicted - seconds) / seconds
    return Fit(
        model,
        r_squared=1.0 - missed / spread if spread > 0 else float(missed == 0.0),
        median_error=float(np.median(errors)),
        p95_error=float(np.percentile(errors, 95)),
        num_passes=len(seconds),
        terms=terms,
    )
