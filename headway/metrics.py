"""Latencies that a user sees, in seconds, their SLOs, and QoE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.errors import invalid, require_over

METRICS = ("ttft", "ttfat", "tpot", "tbt", "ttlt")
"""Names of the glossary."""

VIOLATION = 0.95
"""A reader whose QoE is below this was let down."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the ascending values lie.

    Interpolates linearly, as numpy does. ValueError for no values.
    """
    if not ordered:
        raise ValueError("percentile of no values")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return min(low + (high - low) * (place - below), high)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of one metric."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of the values; None where there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        mean = math.fsum(ordered) / len(ordered)
        return cls(mean, *(percentile(ordered, share) for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A finished request: the instants that its user saw; ``longest_gap`` between two tokens.

    ``first_answer_at`` is None where the reasoning never ended.
    """

    arrival_at: float
    first_token_at: float
    first_answer_at: float | None
    last_token_at: float
    num_output_tokens: int
    longest_gap: float = 0.0

    @property
    def ttft(self) -> float:
        """Arrival to first token."""
        return self.first_token_at - self.arrival_at

    @property
    def ttfat(self) -> float | None:
        """Arrival to first answering token."""
        return None if self.first_answer_at is None else self.first_answer_at - self.arrival_at

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.num_output_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.num_output_tokens - 1)

    @property
    def ttlt(self) -> float:
        """Arrival to last token."""
        return self.last_token_at - self.arrival_at

    def metric(self, name: str) -> float | None:
        """Return a metric by its glossary name; ``tbt`` is the longest gap."""
        value: float | None = self.longest_gap if name == "tbt" else getattr(self, name)
        return value


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits, in seconds, by metric; a limit on ``tbt`` binds every gap of a request."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Parse ``ttft=0.25,tpot=0.1``; INVALID_ARGUMENT with the part that is wrong."""
        limits: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            name = name.strip().lower()
            if name not in METRICS or name in limits:
                raise invalid("slo", part, f"each of {', '.join(METRICS)} at most once")
            limits[name] = _seconds(part, value)
        return cls(limits)

    def met(self, times: RequestTimes) -> bool:
        """Return whether a request kept every limit.

        A single token has no tpot to break; reasoning that never ended breaks any ttfat.
        """
        for name, limit in self.limits.items():
            value = times.metric(name)
            if value is None and name == "ttfat":
                return False
            if value is not None and value > limit:
                return False
        return True

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits.items())


def _seconds(part: str, value: str) -> float:
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not 0.0 < limit < math.inf:
        raise invalid("slo", part, "name=seconds, the seconds over 0")
    return limit


def goodput(finished: Iterable[RequestTimes], slo: Slo, duration: float) -> float:
    """Requests per second that kept the SLO, over ``duration`` seconds; 0 for no duration."""
    if duration <= 0.0:
        return 0.0
    return sum(slo.met(times) for times in finished) / duration


def qoe(instants: NDArray[np.float64], tpot: float, *, start: float | None = None) -> float:
    """Return how much of the expected timeline was delivered, 0 to 1 (Andes; PASCAL).

    ``instants``: deliveries of the answering tokens, (n,) ascending, seconds; 0.0 for none.
    A reader takes ``tpot`` seconds a token. Token k is expected at ``e_k = start + k · tpot`` and
    digested at ``d_k = max(t_k, d_(k-1) + tpot, e_k)``, where ``t_k`` is its delivery. QoE is the
    area under the curve of digested tokens over that of expected ones, up to the moment when the
    last token should have been digested. A later end would reward a late last token.

    ``start``: when the first one was expected, arrival plus the TTFT target; None counts from
    the first one on, so that only its pace is judged. HeadwayError for a ``tpot`` of 0 or less.
    """
    require_over("tpot", tpot, 0)
    if not len(instants):
        return 0.0
    pace = tpot * np.arange(len(instants))
    begin = float(instants[0]) if start is None else start
    # d_k − e_k is the latest delivery so far, each brought to the first token's clock.
    lag = np.maximum(np.maximum.accumulate(instants - begin - pace), 0.0)
    expected = tpot * len(instants) - pace
    return float(np.sum(np.maximum(expected - lag, 0.0)) / np.sum(expected))
