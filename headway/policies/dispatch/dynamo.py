"""``dynamo``: each request at once to the unit of least prefill and decode blocks (NVIDIA Dynamo).

``scale · (owed + prompt − cached) + KV in use + prompt``, in blocks. A temperature above 0 draws
the unit by a softmax of the costs, which are first scaled to span one. The router's queue for
overload (16 chunks a unit) is left out: it does not come to that here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import ClassVar

from headway.bounds import at_least, between
from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams, draw, least


@dataclass(frozen=True, slots=True)
class DynamoParams(RoutingParams):
    """``prefill_load_scale``: weight of the tokens to compute over those in use.

    ``overlap_credit`` and ``host_credit``: tokens that one cached there counts for, on the device
    and in host memory. ``temperature``: of the softmax; 0 takes the least cost.
    """

    prefill_load_scale: float = at_least(0, default=1.0)
    overlap_credit: float = between(0, 1, default=1.0)
    host_credit: float = between(0, 1, default=0.75)
    temperature: float = at_least(0, default=0.0)


class Dynamo(Routing):
    """Dispatch to the unit of least prefill and decode load."""

    rule: ClassVar[str] = "dynamo"

    def __init__(self, params: DynamoParams | None = None) -> None:
        self._params = params or DynamoParams()
        super().__init__(self._params)

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the least, or one drawn by the costs."""
        if not self._params.temperature:
            return least(entry, able, lambda each: self._cost(entry, each))
        costs = [self._cost(entry, each) for each in able]
        lowest, span = min(costs), max(costs) - min(costs) or 1.0
        scale = span * self._params.temperature
        weights = list(accumulate(exp((lowest - cost) / scale) for cost in costs))
        drawn = weights[-1] * draw(*entry.key)
        return next(each for each, most in zip(able, weights, strict=True) if drawn < most)

    def _cost(self, entry: Waiting, routed: RoutedUnit) -> float:
        """Return tokens: a block of any size is the same share of all."""
        params, unit = self._params, routed.unit
        on_device, in_host = routed.hit
        credit = params.overlap_credit * on_device + params.host_credit * in_host
        prefill = max(0.0, unit.num_owed_tokens + entry.num_tokens - credit)
        return params.prefill_load_scale * prefill + unit.kv_tokens + entry.num_tokens


ANSWER = Answer("dynamo", Dynamo, "NVIDIA Dynamo 1.5, the KV router's default", DynamoParams)
