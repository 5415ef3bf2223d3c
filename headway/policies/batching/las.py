"""``las``: least attained service, unquantised.

Tail-optimal for heavy tails where preemption is free. Here it is not: with every token somebody
else has attained least, so it thrashes where KV is short. It exists for the comparison.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class Las(Batching):
    """Fewest tokens processed first, preempting at every token."""

    preempts = True

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Attained tokens, arrival."""
        attained = candidate.attained_tokens
        return Ranked((attained, candidate.arrival_at), attained + 1)


ANSWER = Answer("las", Las, "least attained service")
