"""``headway``: the five papers' one order in seconds, Φ′ = a − b_γ(w̃_q) + max(0, slack).

The slack of an answering request is the time that its reader can wait unawares: the tokens in hand
at the pacer. Adding it says that this work can wait that long for free. Who opens an answer, or
is about to let its reader wait, is critical and goes before all.

Slack only reorders: it falls at any time and rises only at MemGuard's levels, of all generated
tokens or of the answer's, and MemGuard's credit bounds preemptions as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import between
from headway.policies.answer import Answer
from headway.policies.batching.memguard import level_of, next_level_at
from headway.policies.batching.protocol import Candidate, Ranked
from headway.policies.batching.uniboost import UniBoost, UniBoostParams
from headway.request import Phase, StreamKey

_SOON = 1e-3  # no rank is looked at again at once


@dataclass(frozen=True, slots=True)
class HeadwayParams(UniBoostParams):
    """``critical_slack``: seconds in hand below which a request goes before all.

    ``slack_step``: seconds by which slack has to fall before it counts.
    """

    critical_slack: float = between(0, 60, default=0.7)
    slack_step: float = between(0.01, 60, default=0.5)


@dataclass(slots=True)
class _Held:
    """The slack that counts, and the levels at which it was taken."""

    levels: tuple[int, int]
    slack: float


class Headway(UniBoost):
    """Critical requests first, then boosted arrival plus the reader's slack, behind MemGuard."""

    def __init__(self, params: HeadwayParams | None = None) -> None:
        params = params or HeadwayParams()
        super().__init__(params)
        self._critical_slack = params.critical_slack
        self._slack_step = params.slack_step
        self._held: dict[StreamKey, _Held] = {}

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Critical or not, Φ′, arrival."""
        phi, until_tokens, _ = super().rank(candidate, now=now)
        if candidate.phase is not Phase.ANSWERING or not candidate.is_read:
            return Ranked((0.0 if candidate.opens_answer else 1.0, *phi), until_tokens)
        slack = self._count_slack(candidate, now)
        until_tokens = candidate.attained_tokens + self._tokens_left(candidate)
        if self._is_critical(candidate):
            return Ranked((0.0, *phi), until_tokens)
        falls_at = max(self._falls_at(candidate, slack), now + _SOON)
        return Ranked((1.0, phi[0] + slack, phi[1]), until_tokens, falls_at)

    def gain(self, victim: Candidate, for_: Candidate) -> float:
        """Seconds by which the better one ranks before its victim; a critical one's are many."""
        if self._is_critical(for_) and not self._is_critical(victim):
            return inf
        gain = super().gain(victim, for_)
        return gain + self._slack_of(victim) - self._slack_of(for_)

    def forget(self, key: StreamKey) -> None:
        """Forget its slack and its credits."""
        super().forget(key)
        self._held.pop(key, None)

    def _is_critical(self, candidate: Candidate) -> bool:
        if candidate.opens_answer:
            return True
        held = self._held.get(candidate.key)
        return held is not None and held.slack < self._critical_slack

    def _slack_of(self, candidate: Candidate) -> float:
        """Return the slack that counts: 0 before the answer, and for a critical request."""
        held = self._held.get(candidate.key)
        return 0.0 if held is None or held.slack < self._critical_slack else held.slack

    def _count_slack(self, candidate: Candidate, now: float) -> float:
        """Count the slack in hand: it falls at any time, and rises at a new level alone."""
        slack = max(0.0, candidate.in_hand_until - now)
        levels = (
            level_of(candidate.num_output_tokens, self.k),
            level_of(candidate.num_phase_tokens, self.k),
        )
        held = self._held.get(candidate.key)
        if held is None or held.levels != levels:
            held = self._held[candidate.key] = _Held(levels, slack)
        elif now >= self._falls_at(candidate, held.slack):
            held.slack = min(held.slack, slack)
        return held.slack

    def _falls_at(self, candidate: Candidate, slack: float) -> float:
        """When a slack that counts has fallen by a step, or to what is critical."""
        kept = max(slack - self._slack_step, self._critical_slack)
        return candidate.in_hand_until - kept

    def _tokens_left(self, candidate: Candidate) -> int:
        """Until the next level; an answer's opening ends with its first token."""
        if candidate.opens_answer:
            return 1
        counts = (candidate.num_output_tokens, candidate.num_phase_tokens)
        return min(next_level_at(count, self.k) - count for count in counts)


ANSWER = Answer("headway", Headway, "Headway, one order in seconds", HeadwayParams)
