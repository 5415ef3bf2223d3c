"""What users of each class felt: one figure a class, never a percentile over a mix of them.

- **Chats** wait for their first token (TTFT), **reasoning** for its first answering token (TTFAT).
  Reasoning is split at its median length: one percentile over both halves shows lengths alone.
- A **reader** finishes late by the pauses that outlast the tokens in hand (``lateness``).
- An **unread** request (``stream: false``, stop strings) waits for its last token.
- **Slowdown** is TTLT over the time that the request takes alone (``solo``).
- Raw TTLT comes with the share of it that is solo time: no policy can move that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.errors import require_over
from headway.metrics import VIOLATION, percentile, qoe

READER_PACE = 0.1  # seconds a token
_CHAT, _REASONING, _A_REASONING_TOKEN = 1.0, 2.0, 0.05  # seconds to the first one that is read
_TAIL = 0.99
_PERCENTILES = (50, 90, 99)
_SAMPLES = (
    "chat_ttft",
    "short_ttfat",
    "long_ttfat",
    "lateness",
    "unread_ttlt",
    "unread_slowdown",
    "slowdown",
    "qoe_kept",
)


def lateness(instants: NDArray[np.float64], tpot: float) -> float:
    """Return by how many seconds a reader finishes late.

    ``instants``: deliveries of the answering tokens, (n,) ascending, seconds; 0.0 for none. A
    reader who takes ``tpot`` seconds a token is compared with one who has all tokens at the first.
    HeadwayError for a ``tpot`` of 0 or less.
    """
    require_over("tpot", tpot, 0)
    if not len(instants):
        return 0.0
    return float(np.max(instants - instants[0] - tpot * np.arange(len(instants))))


class Reading(NamedTuple):
    """A reader's figures: seconds late at the end, and QoE."""

    lateness: float
    qoe: float

    @classmethod
    def of(cls, instants: NDArray[np.float64]) -> Reading:
        """Return what a reader at ``READER_PACE`` felt of these answering tokens."""
        return cls(lateness(instants, READER_PACE), qoe(instants, READER_PACE))


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A finished request; seconds.

    ``num_reasoning_tokens`` is 0 for a chat. ``reading`` is None for a request that nobody reads
    as it comes. ``solo``: its TTLT if it ran alone, None if unknown.
    """

    num_reasoning_tokens: int
    ttft: float
    ttfat: float | None
    ttlt: float
    reading: Reading | None
    solo: float | None = None

    @property
    def slowdown(self) -> float | None:
        """TTLT over solo time."""
        return self.ttlt / self.solo if self.solo else None

    @property
    def is_read_in_time(self) -> bool:
        """True if its answer begins in time and comes at least as fast as it is read."""
        begins = begins_in_time(self.num_reasoning_tokens, self.ttft, self.ttfat)
        return begins and self.reading is not None and self.reading.qoe >= VIOLATION


def begins_in_time(
    num_reasoning_tokens: int, ttft: float | None, ttfat: float | None, allowed: float = 0.0
) -> bool:
    """Return whether a reader's answer begins in time; seconds, None for what never came.

    A chat has 1 s to its first token. Reasoning has 2 s, and 0.05 s for each of its tokens, to the
    first answering token. ``allowed``: seconds that it may take longer.
    """
    if ttft is None or ttfat is None:
        return False
    if not num_reasoning_tokens:
        return ttft <= _CHAT + allowed
    return ttfat <= _REASONING + allowed + _A_REASONING_TOKEN * num_reasoning_tokens


def figures(requests: Iterable[ServedRequest]) -> dict[str, float]:
    """Return P50, P90 and P99 by class, in a flat row; a class without requests has none."""
    listed = list(requests)
    row: dict[str, float] = {}
    for name, values in samples(listed).items():
        ordered = sorted(value for value in values if value is not None)
        if name == "qoe_kept":
            row |= {name: statistics.fmean(ordered)} if ordered else {}
        elif ordered:
            row |= {f"{name}_p{n}": percentile(ordered, n / 100) for n in _PERCENTILES}
    if (share := _length_share(listed)) is not None:
        row["ttlt_p99_solo"] = share
    return row


def samples(requests: Sequence[ServedRequest]) -> Mapping[str, Sequence[float | None]]:
    """Return every class's values: one a request, in order, None where it is not of the class.

    ``qoe_kept`` is 1 for a reader whose QoE is kept, else 0.
    """
    reasons = [each.reading is not None and each.num_reasoning_tokens > 0 for each in requests]
    by_length = sorted((n for n, of_it in enumerate(reasons) if of_it), key=_length_of(requests))
    short = set(by_length[: len(by_length) // 2])
    by_class: dict[str, list[float | None]] = {name: [] for name in _SAMPLES}
    for number, each in enumerate(requests):
        reading, is_chat = each.reading, each.reading is not None and not reasons[number]
        is_short = number in short
        row = (
            each.ttft if is_chat else None,
            each.ttfat if reasons[number] and is_short else None,
            each.ttfat if reasons[number] and not is_short else None,
            reading.lateness if reading is not None else None,
            each.ttlt if reading is None else None,
            each.slowdown if reading is None else None,
            each.slowdown,
            float(reading.qoe >= VIOLATION) if reading is not None else None,
        )
        for name, value in zip(_SAMPLES, row, strict=True):
            by_class[name].append(value)
    return by_class


def _length_of(requests: Sequence[ServedRequest]) -> Callable[[int], int]:
    return lambda number: requests[number].num_reasoning_tokens


def _length_share(requests: Sequence[ServedRequest]) -> float | None:
    """Return the mean share of solo time in the TTLT of those from P99 on."""
    times = sorted(each.ttlt for each in requests)
    if not times:
        return None
    least = percentile(times, _TAIL)
    shares = [r.solo / r.ttlt for r in requests if r.solo is not None and r.ttlt >= least > 0]
    return statistics.fmean(shares) if shares else None


TITLES: Mapping[str, str] = {
    "chat_ttft_p99": "chats: TTFT P99, s",
    "short_ttfat_p99": "short reasoning: TTFAT P99, s",
    "long_ttfat_p99": "long reasoning: TTFAT P99, s",
    "lateness_p99": "readers: lateness P99, s",
    "unread_ttlt_p99": "unread: TTLT P99, s",
    "unread_slowdown_p99": "unread: slowdown P99",
    "slowdown_p99": "slowdown P99",
}
"""Titles of the tails, by figure: least is best."""
