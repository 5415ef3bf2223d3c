"""``lex``: the least ``(B, K)``, without a mask."""

from __future__ import annotations

from collections.abc import Sequence

from headway.policies.answer import Answer
from headway.policies.placement.greedy import place_greedily
from headway.policies.placement.protocol import Choice, DecodeUnit, Placement, R, Score


def batch_then_kv(unit: DecodeUnit) -> tuple[float, ...]:
    """Return ``(B, K)``, compared lexicographically."""
    return unit.num_requests, unit.kv_tokens


class Lex(Placement):
    """The least batch, then the least KV: Algorithm 3 without its mask, longest first."""

    def place(self, requests: Sequence[R], units: Sequence[DecodeUnit]) -> list[Choice[R]]:
        """Place on the unit with the fewest requests, then the least KV, then id."""
        return place_greedily(requests, units, score=batch_then_kv)

    @property
    def score(self) -> Score:
        """``(B, K)`` of a unit."""
        return batch_then_kv


ANSWER = Answer("lex", Lex, "SBS, Algorithm 3 without its mask")
