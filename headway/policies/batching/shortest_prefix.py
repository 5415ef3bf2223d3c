"""``shortest-prefix``: who has the fewest prompt tokens to compute enters first.

With ``aging_tokens_per_s`` a second of waiting makes a prompt so much shorter, so that long ones
get their turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.protocol import Batching, Candidate, Ranked


@dataclass(frozen=True, slots=True)
class ShortestPrefixParams(Bounded):
    """``aging_tokens_per_s``: prompt tokens that a second of waiting is worth, 0 for none."""

    aging_tokens_per_s: float = between(0, 1e6, default=0.0)


class ShortestPrefix(Batching):
    """Running requests first, then the waiting ones with the least prompt to compute."""

    def __init__(self, params: ShortestPrefixParams | None = None) -> None:
        self._aging = (params or ShortestPrefixParams()).aging_tokens_per_s

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by uncached prompt tokens with age, then by arrival."""
        uncached = min(
            prompt_work(candidate), candidate.num_prompt_tokens - candidate.num_hit_tokens
        )
        arrival_at = candidate.arrival_at
        return Ranked((not candidate.running, uncached + self._aging * arrival_at, arrival_at))


ANSWER = Answer(
    "shortest-prefix",
    ShortestPrefix,
    "UniBoost's baseline, from vLLM; shortest job first by uncached prefill",
    ShortestPrefixParams,
)
