"""``ltr``: learning to rank (Efficient LLM Scheduling by Learning to Rank, NeurIPS '24).

Requests go by the rank of their predicted output length, drawn once when they come. Who has
waited too long is promoted until it has had a quantum, so that the long ones do not starve.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.batching.lengths import predicted_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class LtrParams(Bounded):
    """``patience``: seconds of waiting until promotion. ``quantum``: tokens that it lasts."""

    patience: float = over(0, default=30.0)
    quantum: int = between(1, 1_000_000, default=100)


@dataclass(slots=True)
class _Seen:
    length: float
    waiting_since: float
    was_running: bool = False
    promoted_until: float = -inf  # attained tokens


class Ltr(Batching):
    """Shortest predicted output first, ranked on arrival; long waits promote."""

    preempts = True
    reads_lengths = True

    def __init__(self, params: LtrParams | None = None) -> None:
        self._params = params or LtrParams()
        self._seen: dict[StreamKey, _Seen] = {}

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Promoted first, then predicted length, then arrival."""
        seen = self._seen.get(candidate.key)
        if seen is None:
            length = candidate.num_output_tokens + predicted_remaining(candidate)
            seen = self._seen[candidate.key] = _Seen(length, now)
        if seen.was_running and not candidate.running:
            seen.waiting_since = now
        seen.was_running = candidate.running
        attained, due_at = candidate.attained_tokens, seen.waiting_since + self._params.patience
        if not candidate.running and now >= due_at:
            seen.promoted_until = attained + self._params.quantum
        is_promoted = attained < seen.promoted_until
        return Ranked(
            (not is_promoted, seen.length, candidate.arrival_at),
            seen.promoted_until if is_promoted else inf,
            inf if candidate.running or is_promoted else due_at,
        )

    def forget(self, key: StreamKey) -> None:
        """Forget its length."""
        self._seen.pop(key, None)


ANSWER = Answer("ltr", Ltr, "Learning to Rank, NeurIPS '24", LtrParams)
