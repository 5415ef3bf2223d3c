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
from math import ceil, inf, isfinite

from headway.bounds import between
from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.batching.boost import ServiceTime
from headway.policies.batching.memguard import CreditParams, MemGuard
from headway.policies.batching.protocol import Candidate, Ranked
from headway.request import Phase, StreamKey

_SOON = 1e-3  # seconds; no rank ends at once
_MEMORY, _DRIFT = 0.98, 1.25  # of the mean pass time
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


class PassTime:
    """The mean duration of a pass, over the last fifty or so.

    It is adopted when it has drifted by a quarter, so that ranks hold for a while.
    """

    def __init__(self) -> None:
        self._sum = self._weight = 0.0
        self.seconds = 0.0

    def passed(self, pass_time: float, num_steps: int) -> bool:
        """Count ``num_steps`` equal passes; return whether the mean was adopted anew."""
        if not (isfinite(pass_time) and pass_time > 0.0):
            return False
        kept = _MEMORY**num_steps
        self._sum = kept * self._sum + (1 - kept) * pass_time
        self._weight = kept * self._weight + (1 - kept)
        mean = self._sum / self._weight
        if self.seconds and 1 / _DRIFT < mean / self.seconds < _DRIFT:
            return False
        self.seconds = mean
        return True


@dataclass(slots=True)
class _Clock:
    """A reader as last looked at; that look counts until its tokens or its time are over."""

    is_critical: bool
    in_hand_until: float
    until_tokens: float
    until_at: float

    def counts(self, candidate: Candidate, now: float) -> bool:
        return candidate.attained_tokens < self.until_tokens and now < self.until_at


class Clocks(MemGuard):
    """Critical readers first, then age against service, then supplied readers."""

    def __init__(self, params: ClocksParams | None = None) -> None:
        self._params = params = params or ClocksParams()
        super().__init__(params, ServiceTime())
        self._pass_time = PassTime()
        self._clocks: dict[StreamKey, _Clock] = {}
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
        until = candidate.attained_tokens + self._tokens_left(candidate)
        if candidate.opens_answer:
            if candidate.num_output_tokens:
                until = candidate.attained_tokens + 1
            return Ranked((_CRITICAL, candidate.arrival_at), until)
        if candidate.phase is not Phase.ANSWERING or not candidate.is_read:
            return Ranked((_BY_AGE, self._age(candidate, self._params.order_slowdown)), until)
        clock = self._look(candidate, now)
        if clock.is_critical:
            return Ranked((_CRITICAL, candidate.arrival_at), clock.until_tokens)
        if candidate.running:
            rank = _SUPPLIED, clock.in_hand_until
        else:
            rank = _BY_AGE, self._age(candidate, self._params.order_slowdown)
        return Ranked(rank, clock.until_tokens, clock.until_at)

    def gain(self, victim: Candidate, for_: Candidate) -> float:
        """Seconds by which the victim has had more for its age; many for a critical request."""
        if self._is_urgent(for_) and not self._is_urgent(victim):
            return inf
        slowdown = self._params.keep_slowdown
        return self._age(victim, slowdown) - self._age(for_, slowdown)

    def forget(self, key: StreamKey) -> None:
        """Forget its credits and its reader."""
        super().forget(key)
        self._clocks.pop(key, None)

    def _look(self, candidate: Candidate, now: float) -> _Clock:
        """Return what counts of its reader; who was critical stays so until ``resume_slack``."""
        clock, params = self._clocks.get(candidate.key), self._params
        if clock is not None and clock.counts(candidate, now):
            return clock
        was_critical = clock is None or clock.is_critical
        slack = candidate.in_hand_until - now
        if slack < (params.resume_slack if was_critical else params.critical_slack):
            lacking = ceil((params.resume_slack - max(slack, 0.0)) / params.reader_pace)
            until_tokens, until_at = candidate.attained_tokens + max(1, lacking), inf
        else:
            until_tokens = candidate.attained_tokens + self._tokens_left(candidate)
            until_at = max(candidate.in_hand_until - params.critical_slack, now + _SOON)
        found = _Clock(until_at == inf, candidate.in_hand_until, until_tokens, until_at)
        self._clocks[candidate.key] = found
        return found

    def _is_urgent(self, candidate: Candidate) -> bool:
        """Return whether it was ranked critical."""
        if candidate.opens_answer:
            return True
        if candidate.phase is not Phase.ANSWERING or not candidate.is_read:
            return False
        clock = self._clocks.get(candidate.key)
        return clock is None or clock.is_critical

    def _age(self, candidate: Candidate, slowdown: float) -> float:
        """Return the arrival plus weighted service, s since the epoch, in steps of a quantum."""
        num_tokens = (
            candidate.num_output_tokens - candidate.num_output_tokens % self._params.quantum
        )
        return candidate.arrival_at + slowdown * num_tokens * self._pass_time.seconds

    def _tokens_left(self, candidate: Candidate) -> int:
        """Return the output tokens until the next quantum."""
        return self._params.quantum - candidate.num_output_tokens % self._params.quantum


ANSWER = Answer("clocks", Clocks, "Headway, places and blocks by their own clocks", ClocksParams)
