"""``headway``: critical readers first, then who is short, then who has become long.

The order, least first:

0. critical: the first visible token is pending, or the reader has few seconds of tokens left. By
   arrival.
1. all others, in seconds: a supplied reader by the instant at which it runs dry, who is short by
   arrival, who is long by ``arrival + patience``.

A request is long once it has ``long_tokens`` output tokens that nobody reads yet. The long yield
their blocks to all others, and those who came last yield first. So the short start at once, and
the long share what is left first come, first served. The longest is not the first to pay, as it
would be by service: it has come early, and it stays in its place.

A ``reserve`` of blocks is kept free ahead of need, so that who has just been prefilled finds room.
Nothing is learned or predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.bounds import Bounded, between
from headway.errors import require_between
from headway.policies.answer import Answer
from headway.policies.batching.protocol import Batching, Candidate, Ranked
from headway.policies.batching.reader_clock import ReaderClocks
from headway.request import Phase, StreamKey

_CRITICAL, _OTHERS = 0.0, 1.0


@dataclass(frozen=True, slots=True)
class HeadwayParams(Bounded):
    """Parameters of the order."""

    long_tokens: int = between(0, 1 << 20, default=512)
    """Output tokens from which a request is long. The more, the more keep their SLO, and the more
    the longest pay. 0: all who reason come first come, first served."""
    patience: float = between(0, 1e6, default=600.0)
    """Seconds after which a long request ranks before those who come then."""
    reserve: float = between(0, 0.5, default=0.02)
    """Share of the blocks that is kept free while long requests can yield."""
    critical_slack: float = between(0, 60, default=0.7)
    """Seconds of tokens in hand under which a reader is critical."""
    resume_slack: float = 2.0
    """Seconds in hand at which a critical reader is supplied again, ``critical_slack`` to 60."""
    quantum: int = between(1, 1 << 16, default=32)
    """Output tokens after which a supplied reader is looked at again."""
    reader_pace: float = between(0.001, 10, default=0.1)
    """Seconds in which a reader reads one token."""

    def __post_init__(self) -> None:
        super(HeadwayParams, self).__post_init__()
        require_between("resume_slack", self.resume_slack, self.critical_slack, 60)


class Headway(Batching):
    """Critical readers, then who is short, then who is long; the long yield their blocks."""

    preempts = True

    def __init__(self, params: HeadwayParams | None = None) -> None:
        self._params = params or HeadwayParams()
        self._clocks = ReaderClocks(self._params)

    @property
    def reserve(self) -> float:
        """Share of the blocks to keep free."""
        return self._params.reserve

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        """Rank by class, then seconds."""
        if candidate.opens_answer:
            until = candidate.attained_tokens + 1 if candidate.num_output_tokens else inf
            return Ranked((_CRITICAL, candidate.arrival_at), until)
        if candidate.phase is Phase.ANSWERING and candidate.is_read:
            clock = self._clocks.look(candidate, now)
            if clock.is_critical:
                return Ranked((_CRITICAL, candidate.arrival_at), clock.until_tokens)
            return Ranked((_OTHERS, clock.in_hand_until), clock.until_tokens, clock.until_at)
        if self.gives_way(candidate):
            return Ranked((_OTHERS, candidate.arrival_at + self._params.patience))
        left = max(1, self._params.long_tokens - candidate.num_output_tokens)
        return Ranked((_OTHERS, candidate.arrival_at), candidate.attained_tokens + left)

    def gives_way(self, candidate: Candidate) -> bool:
        """Return whether it is long: nobody reads the many tokens that it has."""
        is_read = candidate.phase is Phase.ANSWERING and candidate.is_read
        has_many = candidate.num_output_tokens >= max(1, self._params.long_tokens)
        return has_many and not is_read and not candidate.opens_answer

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        """Take blocks from the long alone, and for none of them."""
        return self.gives_way(victim) and not self.gives_way(for_)

    def forget(self, key: StreamKey) -> None:
        """Forget its reader."""
        self._clocks.forget(key)


ANSWER = Answer("headway", Headway, "Headway: critical readers, the short, the long", HeadwayParams)
