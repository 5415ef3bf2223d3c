"""``lpm``: who finds the longest cached prefix enters first (SGLang's cache-aware order).

A hit is worth its tokens. Without aging, requests that find nothing wait for as long as those that
do keep coming. With it, a second of waiting is worth ``aging_tokens_per_s`` cached tokens.
SGLang itself goes by arrival where more than 128 requests wait, to save the time of the look-up.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


@dataclass(frozen=True, slots=True)
class LpmParams(Bounded):
    """``aging_tokens_per_s``: cached tokens that a second of waiting is worth, 0 for none."""

    aging_tokens_per_s: float = between(0, 1e6, default=0.0)


class Lpm(Batching):
    """Running requests first, then the waiting ones with the longest cached prefix."""

    def __init__(self, params: LpmParams | None = None) -> None:
        self._aging = (params or LpmParams()).aging_tokens_per_s

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by cached tokens with age, then by arrival.

        Everybody ages alike, so that the order of two requests never changes.
        """
        arrival_at = candidate.arrival_at
        rest = self._aging * arrival_at - candidate.num_hit_tokens
        return Ranked((not candidate.running, rest, arrival_at))


ANSWER = Answer("lpm", Lpm, "SGLang, longest prefix match, with the aging of #31954", LpmParams)
