"""``one-clock``: readers and age on one clock, and no blocks taken but by need.

The order in a pass, least first:

0. critical: the first visible token is pending, or the reader has few seconds of tokens left. By
   arrival.
1. all others, in seconds: a supplied reader by the instant at which it runs dry; who has no reader
   by ``arrival + order_slowdown · solo``; who has lost its blocks by ``arrival +
   waiting_slowdown · solo``.

Nobody takes blocks for being better. When KV grows beyond what there is, the last in the order
loses its blocks: that is who has had the most service, which frees many blocks at once and is
seldom needed. It then waits by its arrival, so that it is back before those who came later.

All that run advance at one pace. So only whether ``order_slowdown`` is above 1 decides who is last:
above, who has been served longest; below, who came last.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between
from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.reader_clock import MeanPassTime, ReaderClocks
from headway.request import Phase, StreamKey

_CRITICAL, _OTHERS = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class OneClockParams(Bounded):
    """Parameters of the order."""

    order_slowdown: float = between(0, 100, default=2.0)
    """Seconds of waiting that a second of service weighs. The longest pay for values over 1."""
    waiting_slowdown: float = between(0, 100, default=0.0)
    """The same for a request that has lost its blocks. 0: by arrival."""
    critical_slack: float = between(0, 60, default=0.7)
    """Seconds of tokens in hand under which a reader is critical."""
    resume_slack: float = 2.0
    """Seconds in hand at which a critical reader is supplied again, ``critical_slack`` to 60."""
    quantum: int = between(1, 1 << 16, default=32)
    """Output tokens after which a rank by age is computed again."""
    reader_pace: float = between(0.001, 10, default=0.1)
    """Seconds in which a reader reads one token."""

    def __post_init__(self) -> None:
        super(OneClockParams, self).__post_init__()
        require_between("resume_slack", self.resume_slack, self.critical_slack, 60)


class OneClock(Batching):
    """Critical readers first, then everybody by one clock."""

    def __init__(self, params: OneClockParams | None = None) -> None:
        self._params = params or OneClockParams()
        self._clocks = ReaderClocks(self._params)
        self._pass_time = MeanPassTime()
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Changes with the mean pass time."""
        return self._epoch

    def passed(self, pass_time: float, num_tokens: int, num_steps: int = 1) -> None:
        """Measure the pass time."""
        self._epoch += self._pass_time.passed(pass_time, num_steps)

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by class, then seconds."""
        until = candidate.attained_tokens + self._clocks.tokens_left(candidate)
        if candidate.opens_answer:
            if candidate.num_output_tokens:
                until = candidate.attained_tokens + 1
            return Ranked((_CRITICAL, candidate.arrival_at), until)
        if candidate.phase is not Phase.ANSWERING or not candidate.is_read:
            return Ranked((_OTHERS, self._age(candidate)), until)
        clock = self._clocks.look(candidate, now)
        if clock.is_critical:
            return Ranked((_CRITICAL, candidate.arrival_at), clock.until_tokens)
        return Ranked((_OTHERS, clock.in_hand_until), clock.until_tokens, clock.until_at)

    def forget(self, key: StreamKey) -> None:
        """Forget its reader."""
        self._clocks.forget(key)

    def _age(self, candidate: Candidate) -> float:
        """Return the arrival plus weighted service, s since the epoch, in steps of a quantum."""
        has_lost_blocks = candidate.num_preemptions > 0 and not candidate.running
        params = self._params
        slowdown = params.waiting_slowdown if has_lost_blocks else params.order_slowdown
        solo = self._clocks.num_whole(candidate) * self._pass_time.seconds
        return candidate.arrival_at + slowdown * solo


ANSWER = Answer("one-clock", OneClock, "Headway, readers and age on one clock", OneClockParams)
