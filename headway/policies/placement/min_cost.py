"""``min-cost``: the least marginal pass time ``c·B + d·K``, with the mask as a capacity alarm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import require_between
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R


@dataclass(frozen=True, slots=True)
class MinCostParams:
    """``c`` and ``d``: seconds a request and a KV token add to a pass, from the profile (defaults:
    lock-step decode of DeepSeek-V3, 0.1 ms and 0.1 µs). A unit is masked above ``k``
    interquartile ranges *and* ``alarm`` of its capacity, [0, 1].
    """

    c: float = 1e-4
    d: float = 1e-7
    k: float = 1.5
    alarm: float = 0.9

    def __post_init__(self) -> None:
        for name in ("c", "d", "k"):
            require_between(name, getattr(self, name), 0, 1e6)
        require_between("alarm", self.alarm, 0, 1)


class MinCost(Placement):
    """Where the next forward pass stays shortest."""

    def __init__(self, params: MinCostParams | None = None) -> None:
        self._params = params or MinCostParams()

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Longest first."""
        params = self._params
        return place_greedily(requests, units, score=self._cost, k=params.k, alarm=params.alarm)

    def _cost(self, unit: DecodeUnit) -> tuple[float, ...]:
        return (self._params.c * unit.num_requests + self._params.d * unit.kv_tokens,)
