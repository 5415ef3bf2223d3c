"""γ-Ada: UniBoost's fourth phase, γ fitted to what requests waited.

The boost is tail-optimal where γ is the decay rate of the wait, ``P(W > t) ~ e^(−γt)``. Two fits:

- ``responses``, as printed: minus the slope of ``ln P(T > t)`` of response times between the 95th
  and the 99th percentile, by least squares. In one server at a time, T decays as W does. In a batch
  the response times of long outputs are their lengths, which no order changes.
- ``waits``: response times less the passes that served the request. An exponential wait beyond any
  u has the mean 1/γ (its maximum likelihood). All waits over a second count, so a busy hour in
  which all wait alike is no steep tail.

Both look at a sliding window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.bounds import Bounded, between, one_of, over
from headway.errors import invalid, require_between

RESPONSES, WAITS = "responses", "waits"
_LOW, _HIGH = 0.95, 0.99
_WAITED = 1.0
"""Seconds; less is scheduling and no wait."""


@dataclass(frozen=True, slots=True)
class GammaAdaParams(Bounded):
    """``window``: completions kept; ``fewest`` of them and ``num_points`` in the band make a fit.

    ``refit_every``: completions between fits. ``smoothing``: a new fit's weight on γ's
    logarithm; the first one is adopted whole. ``least`` and ``most``: the range of γ, 1/s.
    ``fit``: ``responses`` or ``waits``.
    """

    window: int = between(100, 1_000_000, default=1000)
    fewest: int = 100
    num_points: int = 4
    refit_every: int = between(1, 1_000_000, default=25)
    smoothing: float = over(0, 1, default=0.3)
    least: float = between(1e-9, 1e9, default=1e-4)
    most: float = 10.0
    fit: str = one_of(RESPONSES, WAITS, default=RESPONSES)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        require_between("fewest", self.fewest, 100, self.window)
        require_between("num_points", self.num_points, 2, self.window)
        if not self.least <= self.most <= 1e9:
            raise invalid("most", self.most, f"from least ({self.least:g}) to 1e9 per second")


def tail_slope(times: NDArray[np.float64], num_points: int = 4) -> float | None:
    """Return −d ln P(T > t) / dt between P95 and P99, 1/s; None with nothing to fit.

    ``times``: response times, seconds, shape (n,), in any order.
    """
    n = len(times)
    first, last = int(np.ceil(_LOW * n)), int(np.floor(_HIGH * n))  # ranks, from 1
    last = min(last, n - 1)  # P(T > t) is 0 at the last one
    if last - first + 1 < num_points:
        return None
    tail = np.sort(np.partition(times, first - 1)[first - 1 :])[: last - first + 1]
    survival = np.log((n - np.arange(first, last + 1)) / n)
    t = tail - tail.mean()
    width = float(t @ t)
    if not width > 0.0:
        return None
    slope = -float(t @ survival) / width
    return slope if isfinite(slope) and slope > 0.0 else None


def decay_rate(waits: NDArray[np.float64]) -> float | None:
    """Return 1 / E[W − u | W > u] for u = 1 s, 1/s; None where nobody waited so long.

    ``waits``: seconds, shape (n,), in any order.
    """
    beyond = waits[waits > _WAITED] - _WAITED
    return len(beyond) / float(beyond.sum()) if len(beyond) else None


class GammaFit(Protocol):
    """Parameters of a batching policy whose γ is fitted (``Batching.fits_gamma``)."""

    def fit(self) -> GammaAda:
        """Return a new fit; HeadwayError for what is out of range."""
        ...


class GammaAda:
    """A sample of the last response times, or waits, and γ fitted to them."""

    def __init__(self, gamma: float, params: GammaAdaParams | None = None) -> None:
        self._params = params or GammaAdaParams()
        self.gamma = gamma
        self._times = np.zeros(int(self._params.window))
        self._num_seen = 0
        self._has_fitted = False

    def recall(self, gamma: float) -> None:
        """Go on from a γ that was fitted elsewhere."""
        self.gamma, self._has_fitted = gamma, True

    def completed(self, response_time: float, served: float = 0.0) -> bool:
        """Take in a response time and how much of it passes served, s; whether γ was refitted."""
        if not (isfinite(response_time) and response_time >= 0.0):
            return False
        is_wait = self._params.fit == WAITS
        seconds = max(0.0, response_time - served) if is_wait else response_time
        self._times[self._num_seen % len(self._times)] = seconds
        self._num_seen += 1
        return self._num_seen % self._params.refit_every == 0 and self.refit()

    def refit(self) -> bool:
        """Fit, smooth and clamp; False, and γ as it was, where the fit is degenerate."""
        params = self._params
        if self._num_seen < params.fewest:
            return False
        times = self._times[: min(self._num_seen, len(self._times))]
        is_wait = params.fit == WAITS
        slope = decay_rate(times) if is_wait else tail_slope(times, params.num_points)
        if slope is None:
            return False
        at = min(max(self.gamma, params.least), params.most)
        weight = params.smoothing if self._has_fitted else 1.0
        self._has_fitted = True
        smoothed = exp(log(at) + weight * (log(slope) - log(at)))
        self.gamma = min(max(smoothed, params.least), params.most)
        return True
