"""``countdown``: the predictor's last value, less one for every token since (STAR, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.estimation.protocol import Estimable


@dataclass(frozen=True, slots=True)
class CountdownParams(Bounded):
    """``interval``: k, decode steps between predictions."""

    interval: int = between(1, 1_000_000, default=20)


class Countdown:
    """The predictor's value every k decode steps, counted down by one a token in between."""

    def __init__(self, params: CountdownParams | None = None) -> None:
        self.interval = (params or CountdownParams()).interval

    def remaining(self, request: Estimable) -> float | None:
        """Return at least 1; None before the first prediction, and for one that is no length."""
        prediction = request.prediction
        if prediction is None or not 0 <= prediction < inf:
            return None
        return max(1.0, prediction - request.num_tokens_since_prediction)


ANSWER = Answer("countdown", Countdown, "STAR, section 4", CountdownParams, "noisy-oracle")
