"""``iqr-lex``: IQR-aware lexicographic decode scheduling (Algorithm 3), as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.lex import batch_then_kv
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R, Score


@dataclass(frozen=True, slots=True)
class IqrLexParams(Bounded):
    """``k``: how far above the third quartile a load stands out, in interquartile ranges."""

    k: float = between(0, 1e6, default=1.5)


class IqrLex(Placement):
    """Units whose KV load stands out are masked, then the least ``(B, K)`` wins."""

    def __init__(self, params: IqrLexParams | None = None) -> None:
        self._k = (params or IqrLexParams()).k

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Longest first; the mask is drawn anew for every request."""
        return place_greedily(requests, units, score=batch_then_kv, k=self._k)

    @property
    def score(self) -> Score:
        """``(B, K)`` of a unit, also of a masked one."""
        return batch_then_kv


ANSWER = Answer("iqr-lex", IqrLex, "SBS, Algorithm 3", IqrLexParams)
