"""``min-cost``: the least marginal pass time ``c·B + d·K``, with the mask as a capacity alarm."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.errors import invalid
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, R


class MinCost:
    """``Placement``: where the next forward pass stays shortest.

    ``c`` and ``d``: seconds a request and a KV token add to a pass, from the profile (defaults:
    lock-step decode of DeepSeek-V3, 0.1 ms and 0.1 µs). A unit is masked above ``k``
    interquartile ranges *and* ``alarm`` of its capacity, [0, 1].
    """

    def __init__(
        self, *, c: float = 1e-4, d: float = 1e-7, k: float = 1.5, alarm: float = 0.9
    ) -> None:
        for name, value in (("c", c), ("d", d), ("k", k)):
            if not 0 <= value < inf:
                raise invalid(name, value, "0 or a positive number")
        if not 0 <= alarm <= 1:
            raise invalid("alarm", alarm, "from 0 to 1")
        self._c, self._d, self._k, self._alarm = c, d, k, alarm

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Longest first."""
        return place_greedily(requests, units, score=self._cost, k=self._k, alarm=self._alarm)

    def _cost(self, unit: DecodeUnit) -> tuple[float, ...]:
        return (self._c * unit.num_requests + self._d * unit.kv_tokens,)
