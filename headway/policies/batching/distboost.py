"""``distboost``: UniBoost's first phase, two disjoint queues.

Decodes come first, in order of arrival; prefills share what the chunk has left, in order of Φ.
Neither preempts the other, so long decodes block short prompts: the paper's strawman.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.boost import Boosted, BoostParams, effective_work
from headway.policies.batching.protocol import Candidate, Ranked


class DistBoost(Boosted):
    """Decode first by arrival, then prefill by boosted arrival; nothing is preempted."""

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Which queue, then the place in it."""
        if candidate.decoding:
            return Ranked((0.0, candidate.arrival_at, 0.0))
        return Ranked((1.0, *self.priority(candidate, effective_work(candidate))))


ANSWER = Answer("distboost", DistBoost, "UniBoost, phase 1", BoostParams)
