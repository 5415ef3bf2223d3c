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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.errors import require_over
from headway.metrics import VIOLATION, percentile, qoe

READER_PACE = 0.1  # seconds a token
_CHAT, _REASONING, _A_REASONING_TOKEN = 1.0, 2.0, 0.05  # seconds to the first one that is read
_TAIL = 0.99


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
class FeltRequest:
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


def figures(requests: Iterable[FeltRequest]) -> dict[str, float]:
    """Return P50 and P99 by class, in a flat row; a class without requests has none."""
    listed = list(requests)
    read = [each for each in listed if each.reading is not None]
    unread = [each for each in listed if each.reading is None]
    chats = [each for each in read if not each.num_reasoning_tokens]
    reasoning = sorted((r for r in read if r.num_reasoning_tokens), key=_length)
    half = len(reasoning) // 2
    samples: dict[str, Iterable[float | None]] = {
        "chat_ttft": (each.ttft for each in chats),
        "short_ttfat": (each.ttfat for each in reasoning[:half]),
        "long_ttfat": (each.ttfat for each in reasoning[half:]),
        "lateness": (each.reading.lateness for each in read if each.reading),
        "unread_ttlt": (each.ttlt for each in unread),
        "unread_slowdown": (each.slowdown for each in unread),
        "slowdown": (each.slowdown for each in listed),
    }
    row: dict[str, float] = {}
    for name, values in samples.items():
        ordered = sorted(value for value in values if value is not None)
        if ordered:
            row[f"{name}_p50"] = percentile(ordered, 0.5)
            row[f"{name}_p99"] = percentile(ordered, _TAIL)
    kept = [each.reading.qoe >= VIOLATION for each in read if each.reading]
    if kept:
        row["qoe_kept"] = statistics.fmean(kept)
    if (share := _length_share(listed)) is not None:
        row["ttlt_p99_solo"] = share
    return row


def _length(request: FeltRequest) -> int:
    return request.num_reasoning_tokens


def _length_share(requests: Sequence[FeltRequest]) -> float | None:
    """Return the mean share of solo time in the TTLT of those from P99 on."""
    times = sorted(each.ttlt for each in requests)
    if not times:
        return None
    least = percentile(times, _TAIL)
    shares = [r.solo / r.ttlt for r in requests if r.solo is not None and r.ttlt >= least > 0]
    return statistics.fmean(shares) if shares else None


TITLES: Mapping[str, str] = MappingProxyType(
    {
        "chat_ttft_p99": "chats: TTFT P99, s",
        "short_ttfat_p99": "short reasoning: TTFAT P99, s",
        "long_ttfat_p99": "long reasoning: TTFAT P99, s",
        "lateness_p99": "readers: lateness P99, s",
        "unread_ttlt_p99": "unread: TTLT P99, s",
        "unread_slowdown_p99": "unread: slowdown P99",
        "slowdown_p99": "slowdown P99",
    }
)
"""Titles of the tails, by figure: least is best."""
