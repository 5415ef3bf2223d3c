"""Sliding means over the last reports: what the interval is computed from."""

from __future__ import annotations

from collections import deque
from math import fsum, isfinite


class SlidingMean:
    """Mean of the last ``size`` values in seconds; ``default`` before the first (Algorithm 1).

    A value that is negative, NaN or infinite is dropped and counted, and never enters.
    """

    def __init__(self, size: int, default: float) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._mean = default
        self.num_dropped = 0

    @property
    def value(self) -> float:
        """The mean, seconds."""
        return self._mean

    def recall(self, mean: float) -> None:
        """An earlier mean in place of the default; nonsense is ignored."""
        if not self._values and isfinite(mean) and mean >= 0:
            self._mean = mean

    def add(self, value: float) -> bool:
        """Take one value in; False if it was dropped."""
        if not isfinite(value) or value < 0:
            self.num_dropped += 1
            return False
        self._values.append(value)
        self._mean = fsum(self._values) / len(self._values)
        return True
