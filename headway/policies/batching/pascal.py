"""``pascal``: two queues in an instance, reasoning before answering (PASCAL, section IV-C).

High: prefill and reasoning, whose tokens nobody sees and which must end soon. Low: answering, and
reasoning that has grown too large, for good. Round-robin by token quanta inside each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.request import Phase

HIGH, LOW = 0, 1


@dataclass(frozen=True, slots=True)
class PascalParams(Bounded):
    """``quantum``: generated tokens of one turn. ``demote_tokens``: KV of the longest reasoning.

    Reasoning requests with more KV tokens are demoted to the low queue.
    """

    quantum: int = between(1, 10_000_000, default=500)
    demote_tokens: int = between(1, 10_000_000, default=5000)


class Pascal(Batching):
    """Reasoning before answering, fewest quanta first in each, oversized reasoning demoted."""

    preempts = True

    def __init__(self, params: PascalParams | None = None) -> None:
        self._params = params or PascalParams()
        self.fresh_tokens = self._params.quantum

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by queue, quanta used since the phase began, then arrival."""
        queue, quanta = self._turn(candidate)
        return Ranked((queue, quanta, candidate.arrival_at), self._until(candidate, queue))

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether the victim is in a lower queue, or has used more quanta in the same."""
        return self._turn(for_) < self._turn(victim)

    def _turn(self, candidate: Candidate) -> tuple[int, int]:
        if candidate.phase is Phase.PREFILL:
            return HIGH, 0
        is_low = candidate.phase is Phase.ANSWERING or self._room(candidate) < 0
        return (LOW if is_low else HIGH), candidate.num_phase_tokens // self._params.quantum

    def _room(self, candidate: Candidate) -> int:
        """Tokens until a reasoning request is demoted; its KV never shrinks for good."""
        num_tokens = candidate.num_prompt_tokens + candidate.num_output_tokens
        return self._params.demote_tokens - num_tokens

    def _until(self, candidate: Candidate, queue: int) -> float:
        if candidate.phase is Phase.PREFILL:
            return inf
        quantum = self._params.quantum
        left = quantum - candidate.num_phase_tokens % quantum
        if candidate.phase is Phase.REASONING and queue == HIGH:
            left = min(left, self._room(candidate) + 1)
        return candidate.attained_tokens + left


ANSWER = Answer("pascal", Pascal, "PASCAL, section IV-C", PascalParams)
