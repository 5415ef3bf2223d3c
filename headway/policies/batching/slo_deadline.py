"""``slo-deadline``: earliest deadline first, where deadlines are those of the SLO.

Before the first visible token the deadline is the arrival plus the limit. Reasoning has a time for
each of its tokens on top; only those generated so far are known. From then on the next token is
due when the reader has read the others. A request that nobody reads is due like reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import Phase, StreamKey


@dataclass(frozen=True, slots=True)
class SloDeadlineParams(Bounded):
    """Parameters of the deadlines: ``ttft`` of a chat and ``ttfat`` of reasoning, seconds."""

    ttft: float = between(0, 3600, default=1.0)
    ttfat: float = between(0, 3600, default=2.0)
    per_token: float = between(0, 60, default=0.05)
    """Seconds for each reasoning token, on top of ``ttfat``."""
    quantum: int = between(1, 1 << 16, default=32)
    """Output tokens after which a deadline is looked at again."""


class SloDeadline(Batching):
    """Earliest deadline first; blocks are taken by need alone."""

    def __init__(self, params: SloDeadlineParams | None = None) -> None:
        self._params = params or SloDeadlineParams()
        self._held: dict[StreamKey, Ranked] = {}

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by deadline."""
        if candidate.phase is Phase.ANSWERING and candidate.in_hand_until > -inf:
            return self._of_reader(candidate)
        quantum = self._params.quantum
        left = 1 if candidate.opens_answer else quantum - candidate.num_output_tokens % quantum
        return self._ranked(candidate, self._given(candidate), left)

    def forget(self, key: StreamKey) -> None:
        """Forget its reader."""
        self._held.pop(key, None)

    def _of_reader(self, candidate: Candidate) -> Ranked:
        """Look at the reader's clock once a quantum: it changes with every token."""
        held = self._held.get(candidate.key)
        if held is None or candidate.attained_tokens >= held.until_tokens:
            held = self._ranked(candidate, candidate.in_hand_until, self._params.quantum)
            self._held[candidate.key] = held
        return held

    def _ranked(self, candidate: Candidate, due_at: float, num_tokens: int) -> Ranked:
        return Ranked((due_at, candidate.arrival_at), candidate.attained_tokens + num_tokens)

    def _given(self, candidate: Candidate) -> float:
        """Return the deadline of the first visible token."""
        params = self._params
        if candidate.is_read and not candidate.reasons:
            return candidate.arrival_at + params.ttft
        num_tokens = candidate.num_output_tokens - candidate.num_output_tokens % params.quantum
        return candidate.arrival_at + params.ttfat + params.per_token * num_tokens


ANSWER = Answer("slo-deadline", SloDeadline, "earliest SLO deadline first", SloDeadlineParams)
