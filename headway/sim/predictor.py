"""The predictor's core, and what gateways know from it: mean output lengths by prompt length."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from headway.core.predictor.core import MAX_OBSERVATIONS, Observed, PredictorCore
from headway.sim.worker import MODEL

_INTERVAL = 1.0  # seconds between two questions of the gateways


class KeepsTime(Protocol):
    """A keeper of virtual time."""

    @property
    def now(self) -> float:
        """Seconds since the start."""


class LearnedLengths:
    """Means of finished requests, as gateways have them: at least a second old."""

    def __init__(self, kernel: KeepsTime) -> None:
        self._kernel = kernel
        self._core = PredictorCore()
        self._table = self._core.table(MODEL)
        self._finished: list[tuple[int, int]] = []
        self._asked_at = 0.0

    def finished(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Note a finished request for the next question."""
        self._finished.append((num_prompt_tokens, num_output_tokens))

    def expected(self, num_prompt_tokens: int) -> float:
        """Return the output tokens that a new request is expected to have; 0 if unknown."""
        if self._finished and self._kernel.now >= self._asked_at + _INTERVAL:
            self._ask()
        return self._table.means[bisect_left(self._table.bounds, num_prompt_tokens)]

    def _ask(self) -> None:
        self._asked_at = self._kernel.now
        prompts, outputs = zip(*self._finished[:MAX_OBSERVATIONS], strict=True)
        self._core.handle(Observed(MODEL, prompts, outputs), now=self._kernel.now)
        self._table = self._core.table(MODEL)
        self._finished = []
