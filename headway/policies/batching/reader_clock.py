"""Readers' clocks and the mean pass time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import Protocol

from headway.policies.batching.protocol import Candidate
from headway.request import StreamKey

_SOON = 1e-3  # seconds; no rank ends at once
_MEMORY, _DRIFT = 0.98, 1.25  # of the mean pass time


class ReaderParams(Protocol):
    """Slacks in seconds, ``reader_pace`` in seconds a token; see ``HeadwayParams``."""

    @property
    def critical_slack(self) -> float:
        """Seconds in hand under which a reader is critical."""

    @property
    def resume_slack(self) -> float:
        """Seconds in hand at which it is supplied again."""

    @property
    def quantum(self) -> int:
        """Tokens after which a rank is computed again."""

    @property
    def reader_pace(self) -> float:
        """Seconds in which a reader reads one token."""


class MeanPassTime:
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
class ReaderClock:
    """A reader as last looked at; that look counts until its tokens or its time are over."""

    is_critical: bool
    in_hand_until: float
    until_tokens: float
    until_at: float

    def counts(self, candidate: Candidate, now: float) -> bool:
        """Return whether this look still counts."""
        return candidate.attained_tokens < self.until_tokens and now < self.until_at


class ReaderClocks:
    """The clocks of all readers of a worker."""

    def __init__(self, params: ReaderParams) -> None:
        self._params = params
        self._clocks: dict[StreamKey, ReaderClock] = {}

    def look(self, candidate: Candidate, now: float) -> ReaderClock:
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
            until_tokens = candidate.attained_tokens + self.tokens_left(candidate)
            until_at = max(candidate.in_hand_until - params.critical_slack, now + _SOON)
        reader_clock = ReaderClock(until_at == inf, candidate.in_hand_until, until_tokens, until_at)
        self._clocks[candidate.key] = reader_clock
        return reader_clock

    def tokens_left(self, candidate: Candidate) -> int:
        """Return the output tokens until the next quantum."""
        return self._params.quantum - candidate.num_output_tokens % self._params.quantum

    def forget(self, key: StreamKey) -> None:
        """Forget a reader."""
        self._clocks.pop(key, None)
