"""``iqr-lex``: IQR-aware lexicographic decode scheduling (Algorithm 3), as printed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.errors import invalid
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.lex import batch_then_kv
from headway.policies.placement.protocol import Choice, DecodeUnit, R


class IqrLex:
    """``Placement``: units whose KV load stands out are masked, then the least ``(B, K)`` wins.

    ``k``: how far above the third quartile a load stands out, in interquartile ranges.
    """

    def __init__(self, *, k: float = 1.5) -> None:
        if not 0 <= k < inf:
            raise invalid("k", k, "0 or a positive number")
        self._k = k

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Longest first; the mask is drawn anew for every request."""
        return place_greedily(requests, units, score=batch_then_kv, k=self._k)
