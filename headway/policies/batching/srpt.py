"""``srpt``: shortest remaining processing time with perfect lengths (the simulator's).

Mean-optimal where preemption is free. Without the truth it goes by the prediction, and by arrival
where there is none.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.lengths import known_remaining, prompt_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class Srpt(Batching):
    """Fewest tokens still to process first, preempting whoever has more."""

    preempts = True
    improves = True
    reads_lengths = True

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Remaining tokens, arrival."""
        remaining = prompt_remaining(candidate) + known_remaining(candidate)
        return Ranked((remaining, candidate.arrival_at), candidate.attained_tokens + 1)


ANSWER = Answer("srpt", Srpt, "shortest remaining processing time, perfect lengths")
