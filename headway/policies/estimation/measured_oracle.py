"""``measured-oracle``: the truth with the error that a trained predictor was measured to have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random

from headway.bounds import Bounded, between, over
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.estimation.noisy_oracle import sigma_of
from headway.policies.estimation.protocol import Estimable

_MOST_MISSED = 64


@dataclass(frozen=True, slots=True)
class MeasuredOracleParams(Bounded):
    """``errors``: mean absolute errors as shares of the remaining length, each from as many
    ``generated`` tokens on; ascending from 0.

    ``lean``: how far predictions lean towards the ``usual`` output tokens, 0 to 1: a long output
    is expected shorter, a short one longer. ``late``: tokens drawn until an answer is there.
    ``away``: the share of answers that never come. ``interval``: k, decode steps between
    predictions. ``seed``: of the errors.
    """

    generated: Sequence[int] = (0,)
    errors: Sequence[float] = (0.5,)
    lean: float = between(0, 1, default=0.0)
    usual: float = over(0, default=256.0)
    late: int = between(0, 1_000_000, default=1)
    away: float = between(0, 1, default=0.0)
    interval: int = between(1, 1_000_000, default=20)
    seed: int = 0

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        generated = _listed("generated", self.generated, (int,), "whole numbers")
        errors = _listed("errors", self.errors, (int, float), "numbers")
        if generated[:1] != (0,) or list(generated) != sorted(set(generated)):
            raise invalid("generated", generated, "ascending from 0")
        if len(errors) != len(generated) or not all(0 <= error <= 2 for error in errors):
            raise invalid("errors", errors, f"{len(generated)} shares from 0 to 2")


def _listed(
    name: str, values: Sequence[float], kinds: Sequence[type], said: str
) -> tuple[float, ...]:
    """Return a list's values; refuse what is no list, and values of another type."""
    if not isinstance(values, Sequence) or not all(type(each) in kinds for each in values):
        raise invalid(name, values, f"a list of {said}")
    return tuple(values)


class MeasuredOracle:
    """The truth, leaning towards the usual, times a log-normal error; late, and away at times.

    The same seed, request and prediction number give the same error.
    """

    follows_from_tokens = True
    """Its answer follows from the request and its tokens alone, whenever it is asked."""

    def __init__(self, params: MeasuredOracleParams | None = None) -> None:
        self._params = params = params or MeasuredOracleParams()
        self.interval = params.interval
        self._sigmas = [sigma_of(error) for error in params.errors]

    def remaining(self, request: Estimable) -> float | None:
        """Tokens still to come; None before the first answer, and outside the simulator."""
        left, params = request.true_remaining, self._params
        newest = (request.num_output_tokens - params.late) // self.interval
        if left is None or newest < 0:
            return None
        for number in range(newest, max(-1, newest - _MOST_MISSED), -1):
            rng = Random(f"{params.seed}/{request.key.stream_id}/{number}")
            if rng.random() >= params.away:
                asked_at = number * self.interval
                since = request.num_output_tokens - asked_at
                return max(1.0, self._predicted(left + since, asked_at, rng) - since)
        return None

    def _predicted(self, left: int, num_generated: int, rng: Random) -> float:
        """Return what it says of ``left`` tokens to come."""
        params = self._params
        sigma = self._sigmas[bisect_right(params.generated, num_generated) - 1]
        leaning = exp(params.lean * log(params.usual / (num_generated + left)))
        return left * leaning * exp(sigma * rng.gauss(0.0, 1.0))


ANSWER = Answer(
    "measured-oracle",
    MeasuredOracle,
    "STAR, with the errors of a predictor's card",
    MeasuredOracleParams,
    instead="estimation countdown or bucket-mean",
)
