"""``fcfs``: first come, first served, prefill and decode alike (vLLM's default order)."""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class Fcfs(Batching):
    """Earliest arrival first."""

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by arrival."""
        return Ranked((candidate.arrival_at,))


ANSWER = Answer("fcfs", Fcfs, "vLLM's default")
