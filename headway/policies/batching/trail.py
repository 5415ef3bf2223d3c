"""``trail``: SRPT on predicted remaining lengths with limited preemption (TRAIL, ICLR '25).

A request may be preempted while it has generated less than a share c of its predicted output;
after that its KV is worth more than what its preemption would gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.policies.answer import Answer
from headway.policies.batching.lengths import predicted_remaining, prompt_remaining
from headway.policies.batching.protocol import Batching, Candidate, Ranked


@dataclass(frozen=True, slots=True)
class TrailParams(Bounded):
    """``c``: the share of the predicted output before which preemption is allowed."""

    c: float = between(0, 1, default=0.8)


class Trail(Batching):
    """Shortest predicted remaining length first, preempting only the early part of a request."""

    preempts = True
    improves = True
    reads_lengths = True

    def __init__(self, params: TrailParams | None = None) -> None:
        self._c = (params or TrailParams()).c

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Late and running first, then predicted tokens to come, then arrival."""
        late = candidate.running and self._is_late(candidate)
        remaining = prompt_remaining(candidate) + predicted_remaining(candidate)
        return Ranked((not late, remaining, candidate.arrival_at), candidate.attained_tokens + 1)

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Return whether the victim is before its late part."""
        return not self._is_late(victim)

    def _is_late(self, candidate: Candidate) -> bool:
        done = candidate.num_output_tokens
        return done > 0 and done >= self._c * (done + predicted_remaining(candidate))


ANSWER = Answer("trail", Trail, "TRAIL, ICLR '25", TrailParams)
