"""``bins``: a predictor that only tells two, four or six classes of length (STAR, Table 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.policies.answer import Answer
from headway.policies.estimation.protocol import Estimable

_K = 1024
EDGES: Mapping[int, tuple[int, ...]] = {
    2: (0, 8 * _K, 32 * _K),
    4: (0, 4 * _K, 8 * _K, 16 * _K, 32 * _K),
    6: (0, 2 * _K, 4 * _K, 6 * _K, 8 * _K, 16 * _K, 32 * _K),
}
"""The paper's, in tokens still to come."""


@dataclass(frozen=True, slots=True)
class BinsParams(Bounded):
    """``num_bins``: 2, 4 or 6. ``interval``: k, decode steps between predictions."""

    num_bins: int = 4
    interval: int = between(1, 1_000_000, default=20)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.num_bins not in EDGES:
            raise invalid("num_bins", self.num_bins, "2, 4 or 6")


class Bins:
    """The middle of the bin that holds the remaining length, predicted or (in simulation) true.

    In the simulator, which has no hidden states, the class itself is always right: what is
    studied is the grain alone.
    """

    def __init__(self, params: BinsParams | None = None) -> None:
        params = params or BinsParams()
        self.interval = params.interval
        self._edges = EDGES[params.num_bins]

    def remaining(self, request: Estimable) -> float | None:
        """Return the bin's middle at the last prediction, counted down; None where none came."""
        since = request.num_tokens_since_prediction
        length = request.prediction
        if length is None and request.true_remaining is not None:
            since = request.num_output_tokens % self.interval
            length = request.true_remaining + since
        if length is None or not 0 <= length < inf:
            return None
        return max(1.0, self._middle(length) - since)

    def _middle(self, length: float) -> float:
        above = min(bisect_right(self._edges, length), len(self._edges) - 1)
        return (self._edges[above - 1] + self._edges[above]) / 2


ANSWER = Answer("bins", Bins, "STAR, Table 3: 2, 4 and 6 bins", BinsParams)
