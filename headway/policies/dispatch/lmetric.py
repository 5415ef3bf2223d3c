"""``lmetric``: each request at once to the unit of least tokens times requests (LMETRIC).

The unit's prompt tokens ahead, with the request's own uncached ones, times its requests with this
one: no weight to tune.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from headway.policies.answer import Answer
from headway.policies.dispatch.protocol import Waiting
from headway.policies.dispatch.routing import RoutedUnit, Routing, RoutingParams


class Lmetric(Routing):
    """Dispatch to the unit of least (owed + uncached) · (1 + requests)."""

    rule: ClassVar[str] = "lmetric"

    def __init__(self, params: RoutingParams | None = None) -> None:
        super().__init__(params or RoutingParams())

    def choose(self, entry: Waiting, able: Sequence[RoutedUnit]) -> RoutedUnit:
        """Return the least; ties go to the lower id."""
        return min(able, key=lambda each: (self._score(entry, each), each.name))

    @staticmethod
    def _score(entry: Waiting, routed: RoutedUnit) -> float:
        unit = routed.unit
        return (unit.num_owed_tokens + routed.num_uncached(entry)) * (1 + unit.num_requests)


ANSWER = Answer("lmetric", Lmetric, "LMETRIC, with the queue", RoutingParams)
