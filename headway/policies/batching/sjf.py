"""``sjf``: shortest job first with perfect lengths, which only the simulator knows.

Without the truth it goes by the prediction, and by arrival where there is none.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.lengths import known_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class Sjf(Batching):
    """Running requests first, then the waiting one with the fewest tokens in all."""

    reads_lengths = True

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by prompt and output tokens, then arrival."""
        remaining = known_remaining(candidate)
        size = prompt_work(candidate) + candidate.num_output_tokens + remaining
        outlived_at = candidate.attained_tokens + max(1, remaining)  # from there on it only grows
        return Ranked((not candidate.running, size, candidate.arrival_at), outlived_at)


ANSWER = Answer("sjf", Sjf, "shortest job first, perfect lengths")
