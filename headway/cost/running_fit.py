"""Pass-time coefficients from passes as they come, with less and less weight on old ones.

Least squares on relative residuals, as ``headway.cost.fit``, on decaying sums of products: what is
kept does not grow. Coefficients of a profile count as a part of a pass, so that they stand where
the passes tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from headway.cost.pass_time import EACH_TERM, MOST_SECONDS, PassTime, Share

_TERMS = ("base", "per_prefill_token", "per_prefill_context", "per_request", "per_kv_token")
BLOCK = 32
"""Passes between two fits."""
_KEPT = 0.97
"""Weight that passes keep at every fit: about a thousand passes count."""
_PRIOR = 0.25
"""Passes as which a profile counts: it decides only what they do not tell."""
_NO_PRIOR = 1e-3
"""Share of the passes as which zeros count without a profile: like terms share their time."""
_FEWEST = 8
"""Passes of a stage before its terms count."""

Floats = NDArray[np.float64]


class RunningFit:
    """A running fit of ``PassTime`` to an instance's passes."""

    def __init__(self, prior: PassTime | None = None) -> None:
        self.pass_time = prior or PassTime(0.0)
        self._has_prior = prior is not None
        self._prior = _vector(self.pass_time)
        self._products = np.zeros((len(_TERMS), len(_TERMS)))
        self._sums = np.zeros(len(_TERMS))
        self._num_passes = 0.0
        self._rows: list[tuple[float, ...]] = []
        self._num_prefills = self._num_decodes = 0

    @property
    def knows_prefill(self) -> bool:
        """True if enough passes with prompt tokens were measured."""
        return self._num_prefills >= _FEWEST

    @property
    def knows_decode(self) -> bool:
        """True if enough passes with decoding requests were measured."""
        return self._num_decodes >= _FEWEST

    def add(self, shares: Sequence[Share], seconds: float, num_steps: int = 1) -> bool:
        """Take a pass of units in lock-step; return whether the coefficients were fitted anew.

        ``seconds`` of one of its ``num_steps`` steps, in each of which the KV grows by a token a
        request. A pass whose time is no time does not count.
        """
        if not (isfinite(seconds) and 0.0 < seconds < MOST_SECONDS and shares):
            return False
        share = self._gating(shares)
        self._num_prefills += share.prefill_tokens > 0
        self._num_decodes += share.batch > 0
        kv_tokens = share.kv_tokens + share.batch * (num_steps - 1) / 2
        self._rows.append((1.0, *share[:3], kv_tokens, seconds))
        if len(self._rows) < BLOCK:
            return False
        self._fold()
        return True

    def _gating(self, shares: Sequence[Share]) -> Share:
        if len(shares) == 1:
            return shares[0]
        if self.pass_time.gate == EACH_TERM:
            return Share(*(max(term) for term in zip(*shares, strict=True)))
        awaited = self.pass_time.awaited(shares)
        return max(awaited, key=lambda share: (self.pass_time.seconds(*share), share))

    def _fold(self) -> None:
        rows = np.array(self._rows)
        rows = rows[:, :-1] / rows[:, -1:]
        self._rows.clear()
        self._products = _KEPT * self._products + rows.T @ rows
        self._sums = _KEPT * self._sums + rows.sum(axis=0)
        self._num_passes = _KEPT * self._num_passes + len(rows)
        coefficients = self._solve().clip(0.0, MOST_SECONDS).tolist()
        self.pass_time = PassTime(
            **dict(zip(_TERMS, coefficients, strict=True)), gate=self.pass_time.gate
        )

    def _solve(self) -> Floats:
        """Non-negative least squares: the most negative coefficient is left out until none is."""
        scale = np.sqrt(self._products.diagonal())
        wanted = [term for term in range(len(_TERMS)) if scale[term] > 0.0]
        coefficients = self._prior.copy()
        weight = _PRIOR / self._num_passes if self._has_prior else _NO_PRIOR
        while wanted:
            norm = scale[wanted]
            products = self._products[np.ix_(wanted, wanted)] / np.outer(norm, norm)
            sums = self._sums[wanted] / norm + weight * norm * self._prior[wanted]
            scaled = np.linalg.solve(products + weight * np.eye(len(wanted)), sums)
            if scaled.min() >= 0.0:
                coefficients[wanted] = scaled / norm
                break
            coefficients[wanted.pop(int(scaled.argmin()))] = 0.0
        return coefficients


def _vector(pass_time: PassTime) -> Floats:
    return np.array([getattr(pass_time, name) for name in _TERMS])
