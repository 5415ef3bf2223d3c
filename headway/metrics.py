"""What a user feels of a request, in seconds, and how many requests kept their SLO."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.errors import invalid

METRICS = ("ttft", "ttfat", "tpot", "tbt", "ttlt")
"""By the glossary's names."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the ascending values lie, interpolated linearly.

    As numpy's default. Refuses (ValueError) no values.
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
        """None where there are no values."""
        ordered = sorted(values)
        if not ordered:
            return None
        mean = math.fsum(ordered) / len(ordered)
        return cls(mean, *(percentile(ordered, share) for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One finished request: instants of what its user saw; ``longest_gap`` between two tokens.

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
        """By its glossary name; ``tbt`` is the longest gap."""
        value: float | None = self.longest_gap if name == "tbt" else getattr(self, name)
        return value


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits, in seconds, by metric; a limit on ``tbt`` binds every gap of a request."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """From ``ttft=0.25,tpot=0.1``; INVALID_ARGUMENT with the part that is wrong."""
        limits: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            name = name.strip().lower()
            if name not in METRICS or name in limits:
                raise invalid("slo", part, f"each of {', '.join(METRICS)} at most once")
            limits[name] = _seconds(part, value)
        return cls(limits)

    def met(self, times: RequestTimes) -> bool:
        """Whether a request kept every limit.

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
