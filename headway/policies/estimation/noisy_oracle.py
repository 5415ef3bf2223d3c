"""``noisy-oracle``: the truth with an error of a given size, for studies of accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, inf, sqrt
from random import Random

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.estimation.protocol import Estimable


@dataclass(frozen=True, slots=True)
class NoisyOracleParams(Bounded):
    """``error``: the mean absolute error as a share of the true remaining length (default: STAR's
    predictor, an MAE of 3,873 tokens where outputs have 7,542 in the mean).
    ``interval``: k, decode steps between predictions. ``seed``: of the errors. ``halved_by``:
    generated tokens that halve the spread of the error, as a predictor sees more of the answer (its
    Fig. 7: about 3,700); inf: never.
    """

    error: float = between(0, 2, default=0.5)
    interval: int = between(1, 1_000_000, default=20)
    seed: int = 0
    halved_by: float = inf

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if not self.halved_by > 0:
            raise invalid("halved_by", self.halved_by, "over 0 tokens, or inf")


class NoisyOracle:
    """The truth times a log-normal error, drawn anew at every prediction and then counted down.

    The error's mean absolute size is the one asked for, and its median 1. The same seed, request
    and prediction number give the same error.
    """

    follows_from_tokens = True
    """Its answer follows from the request and its tokens alone, whenever it is asked."""

    def __init__(self, params: NoisyOracleParams | None = None) -> None:
        params = params or NoisyOracleParams()
        self.interval = params.interval
        self._seed = params.seed
        self._sigma = sigma_of(params.error)
        self._halved_by = params.halved_by

    def remaining(self, request: Estimable) -> float | None:
        """Tokens still to come; None outside the simulator."""
        left = request.true_remaining
        if left is None:
            return None
        number, since = divmod(request.num_output_tokens, self.interval)
        predicted = (left + since) * self._factor(request.key.stream_id, number)
        return max(1.0, predicted - since)

    def _factor(self, stream_id: int, number: int) -> float:
        if self._sigma == 0.0:
            return 1.0
        sigma = self._sigma * 0.5 ** (number * self.interval / self._halved_by)
        return exp(sigma * Random(f"{self._seed}/{stream_id}/{number}").gauss(0.0, 1.0))


def sigma_of(error: float) -> float:
    """Return σ of a log-normal factor with median 1 and mean distance ``error`` from 1.

    ``E|e^(σZ) − 1| = e^(σ²/2) · (2Φ(σ) − 1) `` (the part below 1 and the part above it), which
    grows with σ: found by bisection.
    """
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_distance(middle) < error else (low, middle)
    return low


def _mean_distance(sigma: float) -> float:
    return exp(sigma * sigma / 2) * erf(sigma / sqrt(2))


ANSWER = Answer(
    "noisy-oracle",
    NoisyOracle,
    "STAR, accuracy sensitivity",
    NoisyOracleParams,
    instead="estimation countdown or bucket-mean",
)
