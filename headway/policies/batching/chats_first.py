"""``chats-first``: decode before prefill, chats before reasoning; a plain baseline in two lines.

With placement and dispatch by least KV, it is what an operator would try first.
"""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


class ChatsFirst(Batching):
    """Requests that decode, then those that do not reason, then by arrival."""

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by decoding or not, reasoning or not, arrival."""
        return Ranked((not candidate.decoding, candidate.reasons, candidate.arrival_at))


ANSWER = Answer("chats-first", ChatsFirst, "the plain baseline for readers")
