"""``hrrn``: highest response ratio next (Brinch Hansen), for requests that wait.

The ratio is (wait + service) / service. What a token costs cancels out of its order, so requests
go by their wait over their tokens. Without a known length they go by arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, isinf, log2

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.boost import prompt_work
from headway.policies.batching.lengths import known_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked

_LEAST = 1e-6
"""Seconds of wait per token below which all ratios are alike."""
_MOST_LEVELS = 1 << 12


@dataclass(frozen=True, slots=True)
class HrrnParams(Bounded):
    """``steps``: a ratio counts in steps of ``2^(1/steps)``, so that an order holds a while."""

    steps: int = between(1, 64, default=4)


class Hrrn(Batching):
    """Running requests first, then the waiting ones with the longest wait for each token."""

    reads_lengths = True

    def __init__(self, params: HrrnParams | None = None) -> None:
        self._steps = (params or HrrnParams()).steps

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank running requests first, then by the ratio's step, then by arrival."""
        arrival_at = candidate.arrival_at
        if candidate.running:
            return Ranked((0.0, 0.0, arrival_at))
        num_tokens = max(1.0, prompt_work(candidate) + known_remaining(candidate))
        if isinf(num_tokens):
            return Ranked((1.0, 0.0, arrival_at))
        level = self._level(arrival_at, num_tokens, now)
        until_at = self._reached_at(arrival_at, num_tokens, level + 1)
        return Ranked((1.0, -level, arrival_at), until_at=until_at)

    def _level(self, arrival_at: float, num_tokens: float, now: float) -> int:
        """Return the last step that was reached; rounding cannot put it beside its instant."""
        ratio = max(0.0, now - arrival_at) / (_LEAST * num_tokens)
        level = min(_MOST_LEVELS, max(0, floor(self._steps * log2(ratio)))) if ratio > 1 else 0
        while level and self._reached_at(arrival_at, num_tokens, level) > now:
            level -= 1
        while self._reached_at(arrival_at, num_tokens, level + 1) <= now:
            level += 1
        return level

    def _reached_at(self, arrival_at: float, num_tokens: float, level: int) -> float:
        """Return when a request reaches a step; inf beyond the last one."""
        if level > _MOST_LEVELS:
            return inf
        return float(arrival_at + num_tokens * _LEAST * 2.0 ** (level / self._steps))


ANSWER = Answer("hrrn", Hrrn, "highest response ratio next, Brinch Hansen 1971", HrrnParams)
