"""Predicted loads: of a unit over a horizon, and of a request that joins it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(slots=True)
class LoadAhead:
    """A unit's load in tokens, now and after each step of ``step_tokens`` tokens, (H + 1,)."""

    loads: Floats
    step_tokens: int
    _mean: float | None = None

    @property
    def mean(self) -> float:
        """The mean over the horizon, tokens."""
        if self._mean is None:
            self._mean = float(self.loads.mean())
        return self._mean

    def trace(self, num_tokens: int, remaining: float) -> Floats:
        """Return a request's tokens over the same steps: they grow until it ends.

        ``remaining`` of 0: nothing is known, and it counts as its present tokens throughout.
        """
        if not remaining > 0.0:
            return np.full(len(self.loads), float(num_tokens))
        steps = self.step_tokens * np.arange(len(self.loads), dtype=np.float64)
        return np.where(steps < remaining, num_tokens + steps, 0.0)

    def peak_with(self, num_tokens: int, remaining: float) -> float:
        """Return the greatest load over the horizon if a request joins, tokens."""
        return float((self.loads + self.trace(num_tokens, remaining)).max())

    def take(self, num_tokens: int, remaining: float) -> None:
        """Add a request."""
        self.loads = self.loads + self.trace(num_tokens, remaining)
        self._mean = None
