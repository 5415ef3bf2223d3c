"""``slo-queue``: those that wait enter by the deadline of their class; who runs, runs on.

It is what routers and gateways with deadline queues do (Dynamo, llm-d): a deadline is the arrival
plus the limit of the class. ``slo-deadline`` orders running requests, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


@dataclass(frozen=True, slots=True)
class SloQueueParams(Bounded):
    """Limits from arrival on, s: of a chat, of one that reasons, and of one that nobody reads."""

    chat: float = between(0, 86_400, default=1.0)
    reasoning: float = between(0, 86_400, default=2.0)
    unread: float = between(0, 86_400, default=30.0)


class SloQueue(Batching):
    """Running requests first, then the waiting ones with the earliest deadline."""

    def __init__(self, params: SloQueueParams | None = None) -> None:
        self._params = params or SloQueueParams()

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by deadline, then by arrival."""
        arrival_at = candidate.arrival_at
        return Ranked((not candidate.running, arrival_at + self._limit(candidate), arrival_at))

    def _limit(self, candidate: Candidate) -> float:
        params = self._params
        if not candidate.is_read:
            return params.unread
        return params.reasoning if candidate.reasons else params.chat


ANSWER = Answer("slo-queue", SloQueue, "deadline queues of Dynamo and llm-d", SloQueueParams)
