"""``shortest-prefix``: who has the fewest prompt tokens to compute enters first."""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class ShortestPrefix(Batching):
    """Running requests first, then the waiting ones with the least prompt to compute."""

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by uncached prompt tokens, then arrival."""
        return Ranked((not candidate.running, prompt_work(candidate), candidate.arrival_at))


ANSWER = Answer("shortest-prefix", ShortestPrefix, "UniBoost's baseline, from vLLM")
