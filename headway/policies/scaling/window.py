"""Means and peaks over the last seconds: what scaling policies smooth their figures with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import fsum

from headway.policies.scaling.protocol import Rates


class WindowMean:
    """The mean of the figures of the last ``window`` seconds; the newest always counts.

    All figures of one window have as many values; a longer or shorter one begins it anew.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._figures: deque[tuple[float, tuple[float, ...]]] = deque()

    def add(self, *values: float, now: float) -> tuple[float, ...]:
        """Take a figure in; the mean of each of its values."""
        if self._figures and len(self._figures[-1][1]) != len(values):
            self._figures.clear()
        self._figures.append((now, values))
        while self._figures[0][0] <= now - self._window and len(self._figures) > 1:
            self._figures.popleft()
        num = len(self._figures)
        columns = zip(*(values for _, values in self._figures), strict=True)
        return tuple(fsum(column) / num for column in columns)

    def clear(self) -> None:
        """Forget all figures: after a missing one they say nothing."""
        self._figures.clear()


class WindowPeak:
    """The greatest of a figure over the last ``window`` seconds; None before any."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._falling: deque[tuple[float, float]] = deque()

    @property
    def value(self) -> float | None:
        """The peak as of the newest figure."""
        return self._falling[0][1] if self._falling else None

    def add(self, value: float, *, now: float) -> None:
        """Take a figure in."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((now, value))
        while self._falling[0][0] <= now - self._window and len(self._falling) > 1:
            self._falling.popleft()


def smoothed(window: WindowMean, rates: Rates, *, now: float) -> Rates:
    """Return the rates over the window, these included."""
    plain = (rates.requests_per_s, rates.input_tokens_per_s, rates.output_tokens_per_s)
    means: Sequence[float] = window.add(*plain, *rates.bucket_tokens_per_s, now=now)
    return Rates(means[0], means[1], means[2], tuple(means[3:]))
