"""``clocks``: places by the reader's clock, blocks by the service that a request's age has earned.

Two things are scarce. A *place* in a pass costs nothing to give up; *blocks* cost a swap or a
recompute. So a reader's slack buys places and never blocks. All terms are seconds; there is no γ.

The order in a pass, least first:

0. critical: the first visible token is pending, or the reader has few seconds of tokens left. By
   arrival.
1. all others, by ``arrival + order_slowdown · solo``: before the answer, without a reader, or
   without blocks.
2. supplied readers that hold blocks, by the instant at which they run out of tokens.

Blocks are taken only from a request that ranks behind and whose ``arrival + keep_slowdown · solo``
is later by more than the swap costs. MemGuard's credit allows that once a level.

``solo`` is the time that its output tokens would have taken alone: tokens times the mean pass time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import between
from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.batching.boost import ServiceTime
from headway.policies.batching.memguard import CreditParams, MemGuard
from headway.policies.batching.protocol import Candidate, Ranked
from headway.policies.batching.reader_clock import MeanPassTime, ReaderClocks
from headway.request import Phase, StreamKey

_CRITICAL, _BY_AGE, _SUPPLIED = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class ClocksParams(CreditParams):
    """Parameters of the order, and MemGuard's levels and cost of a swap."""

    order_slowdown: float = between(0, 100, default=1.0)
    """Seconds of waiting that a second of service weighs, in a pass. 0: by arrival."""
    keep_slowdown: float = between(0, 100, default=2.0)
    """The same where blocks are taken."""
    critical_slack: float = between(0, 60, default=0.7)
    """Seconds of tokens in hand under which a reader is critical."""
    resume_slack: float = 2.0
    """Seconds in hand at which a critical reader is supplied again, ``critical_slack`` to 60."""
    quantum: int = between(1, 1 << 16, default=32)
    """Output tokens after which a rank by age is computed again."""
    reader_pace: float = between(0.001, 10, default=0.1)
    """Seconds in which a reader reads one token."""

    def __post_init__(self) -> None:
        super(ClocksParams, self).__post_init__()
        require_between("resume_slack", self.resume_slack, self.critical_slack, 60)


class Clocks(MemGuard):
    """Critical readers first, then age against service, then supplied readers."""

    def __init__(self, params: ClocksParams | None = None) -> None:
        self._params = params = params or ClocksParams()
        super().__init__(params, ServiceTime())
        self._pass_time = MeanPassTime()
        self._clocks = ReaderClocks(params)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Changes with the mean pass time."""
        return self._epoch

    def passed(self, pass_time: float, num_tokens: int, num_steps: int = 1) -> None:
        """Measure the pass time, and the service time that a recompute costs."""
        self._service.passed(pass_time, num_tokens, num_steps)
        self._epoch += self._pass_time.passed(pass_time, num_steps)

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by class, then seconds."""
        until = candidate.attained_tokens + self._clocks.tokens_left(candidate)
        if candidate.opens_answer:
            if candidate.num_output_tokens:
                until = candidate.attained_tokens + 1
            return Ranked((_CRITICAL, candidate.arrival_at), until)
        if candidate.phase is not Phase.ANSWERING or not candidate.is_read:
            return Ranked((_BY_AGE, self._age(candidate, self._params.order_slowdown)), until)
        clock = self._clocks.look(candidate, now)
        if clock.is_critical:
            return Ranked((_CRITICAL, candidate.arrival_at), clock.until_tokens)
        if candidate.running:
            rank = _SUPPLIED, clock.in_hand_until
        else:
            rank = _BY_AGE, self._age(candidate, self._params.order_slowdown)
        return Ranked(rank, clock.until_tokens, clock.until_at)

    def gain(self, victim: Candidate, for_: Candidate) -> float:
        """Seconds by which the victim has had more for its age; many for a critical request."""
        if self._clocks.is_urgent(for_) and not self._clocks.is_urgent(victim):
            return inf
        slowdown = self._params.keep_slowdown
        return self._age(victim, slowdown) - self._age(for_, slowdown)

    def forget(self, key: StreamKey) -> None:
        """Forget its credits and its reader."""
        super().forget(key)
        self._clocks.forget(key)

    def _age(self, candidate: Candidate, slowdown: float) -> float:
        """Return the arrival plus weighted service, s since the epoch, in steps of a quantum."""
        solo = self._clocks.num_whole(candidate) * self._pass_time.seconds
        return candidate.arrival_at + slowdown * solo


ANSWER = Answer("clocks", Clocks, "Headway, places and blocks by their own clocks", ClocksParams)
