"""``min-cost``: the least marginal pass time ``c·B + d·K_pred``, where memory suffices ahead.

K_pred is the mean of a unit's predicted load over the horizon. The mask is a capacity alarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R, Score
from headway.policies.readers import CostReader, chosen

_C, _D = 1e-4, 1e-7
"""Lock-step decode of DeepSeek-V3, seconds: while nothing is known."""


@dataclass(frozen=True, slots=True)
class MinCostParams(Bounded):
    """``c`` and ``d``: seconds a request and a KV token add to a pass; None: as the pool's passes
    do, by profile or measured. A unit is masked above ``k`` interquartile ranges *and* ``alarm``
    of its capacity. An answer moves only away from a unit that is ``full``, and only to one that
    it leaves below ``alarm``.
    """

    c: float | None = between(0, 1e6, default=None)
    d: float | None = between(0, 1e6, default=None)
    k: float = between(0, 1e6, default=1.5)
    alarm: float = between(0, 1, default=0.9)
    full: float = between(0, 1, default=0.97)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The score of a unit: what it costs a pass, seconds, then its KV over the horizon, tokens.

    Equal constants are equal scores.
    """

    c: float
    d: float

    def __call__(self, unit: DecodeUnit) -> tuple[float, ...]:
        load = unit.predicted_tokens  # decides where no worker can tell what a token costs
        return self.c * unit.num_requests + self.d * load, load


class MinCost(Placement, CostReader):
    """Placement where forward passes stay shortest over the predicted horizon."""

    reads_ahead = True

    def __init__(self, params: MinCostParams | None = None) -> None:
        self._params = params or MinCostParams()
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take c and d, which only count together."""
        params, source = self._params, costs.source_of("per_request")
        c, d = (costs.per_request, costs.per_kv_token) if costs.knows_decode else (None, None)
        self._c = chosen("c", params.c, c, source, _C)
        self._d = chosen("d", params.d, d, source, _D)
        self._cost = _Cost(self._c.value, self._d.value)

    def constants(self) -> Sequence[Constant]:
        """Return c and d."""
        return self._c, self._d

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Longest first."""
        params = self._params
        return place_greedily(requests, units, score=self._cost, k=params.k, alarm=params.alarm)

    @property
    def score(self) -> Score:
        """The marginal pass time of a unit, seconds, and K_pred, tokens."""
        return self._cost

    def boundary(
        self, request: R, here: DecodeUnit, units: Sequence[DecodeUnit]
    ) -> Choice[R] | None:
        """Move an answer only where it has no room here."""
        if here.kv_tokens <= self._params.full * here.capacity_tokens:
            return None
        able = [
            unit
            for unit in units
            if unit.unit != here.unit
            and unit.is_open
            and unit.kv_tokens + request.num_tokens <= self._params.alarm * unit.capacity_tokens
        ]
        if not able:
            return None
        best = min(able, key=lambda unit: (self._cost(unit), unit.unit))
        return Choice(request, best.unit, self._cost(best))


ANSWER = Answer("min-cost", MinCost, "Headway: the composition's stage 3", MinCostParams)
