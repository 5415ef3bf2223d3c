"""``rr``: round-robin by token quanta, blind to phases (PASCAL's baseline).

Who has used a quantum of generated tokens goes behind those that have used fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked


@dataclass(frozen=True, slots=True)
class RoundRobinParams(Bounded):
    """``quantum``: generated tokens of one turn."""

    quantum: int = between(1, 1_000_000, default=500)


class RoundRobinBatching(Batching):
    """Fewest quanta of 500 tokens used first, then by arrival."""

    preempts = True

    def __init__(self, params: RoundRobinParams | None = None) -> None:
        self._quantum = self.fresh_tokens = (params or RoundRobinParams()).quantum

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by quanta used, then arrival."""
        quanta, used = divmod(candidate.num_output_tokens, self._quantum)
        until = candidate.attained_tokens + self._quantum - used
        return Ranked((quanta, candidate.arrival_at), until)

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether the victim has used more quanta."""
        quantum = self._quantum
        return for_.num_output_tokens // quantum < victim.num_output_tokens // quantum


ANSWER = Answer("rr", RoundRobinBatching, "PASCAL's baseline", RoundRobinParams)
