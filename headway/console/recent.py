"""Figures of what ended lately: rates, latencies by class against their promises, and a history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import floor
from typing import Any, NamedTuple

from headway.metrics import percentile

HISTORY = 600
"""Seconds of history."""
_WINDOW = 60.0  # seconds over which percentiles are taken
_MOST_COUNTED = 2000  # of the newest in it
MOST_KEPT = 24_000
"""Requests that ended, at most."""

Figures = dict[str, Any]


class EndedRequest(NamedTuple):
    """A request that is over; instants and seconds, None where it has none."""

    ended_at: float
    arrival_at: float
    end: str
    """``stop`` or ``length``; else it failed or was cancelled."""
    service_class: str
    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int
    ttft: float | None
    ttfat: float | None
    tpot: float | None
    is_kept: bool | None
    """True if all promises of its class that had come due were kept; None where none had."""
    request_id: str = ""

    @property
    def is_finished(self) -> bool:
        """True if its answer is whole."""
        return self.end in ("stop", "length")


class RecentRequests:
    """The last ten minutes of one gateway; bounded, whatever the load."""

    def __init__(self, now: float) -> None:
        self._ended: deque[EndedRequest] = deque(maxlen=MOST_KEPT)
        self._history: deque[list[float | None]] = deque(maxlen=HISTORY)
        self._second = floor(now)
        self._num_arrived = self._num_tokens = self._num_ended = 0

    @property
    def history(self) -> Sequence[list[float | None]]:
        """One row a second, as ``COLUMNS`` names them."""
        return self._history

    def arrived(self) -> None:
        """Count a request."""
        self._num_arrived += 1

    def produced(self, num_tokens: int) -> None:
        """Count output tokens."""
        self._num_tokens += num_tokens

    def note(self, request: EndedRequest) -> None:
        """Take a request that is over."""
        self._num_ended += 1
        self._ended.append(request)

    def restore(self, history: Iterable[list[float | None]], ended: Iterable[EndedRequest]) -> None:
        """Take what was kept of the minutes before this one's start, oldest first."""
        self._history.extendleft(reversed(list(history)))
        self._ended.extendleft(reversed(list(ended)))

    def tick(self, num_open: int, num_waiting: int, *, now: float) -> None:
        """Close the second that has passed; call it about once a second."""
        second = floor(now)
        elapsed = second - self._second
        if elapsed <= 0:
            return
        overall = _latencies(self.last_minute(now))
        rates = self._num_arrived / elapsed, self._num_ended / elapsed, self._num_tokens / elapsed
        latencies = (overall.get(name) for name in ("ttft_p50", "ttft_p99", "kept"))
        self._history.append([float(second), *rates, num_open, num_waiting, *latencies])
        self._second = second
        self._num_arrived = self._num_tokens = self._num_ended = 0

    def last_minutes(self, now: float) -> list[EndedRequest]:
        """Return what ended in the last ten minutes, oldest first, as far as it is kept."""
        since = now - HISTORY
        newest = list(takewhile(lambda each: each.ended_at >= since, reversed(self._ended)))
        return newest[::-1]

    def last_minute(self, now: float) -> list[EndedRequest]:
        """Return what ended in the last minute, newest first, as far as it is counted."""
        since = now - _WINDOW
        newest = takewhile(lambda each: each.ended_at >= since, reversed(self._ended))
        return [each for each, _ in zip(newest, range(_MOST_COUNTED), strict=False)]

    def by_class(self, now: float) -> dict[str, Figures]:
        """Return the last minute's latencies by class; "" for requests without one."""
        groups: dict[str, list[EndedRequest]] = {}
        for each in self.last_minute(now):
            groups.setdefault(each.service_class, []).append(each)
        return {name: _latencies(groups[name]) for name in sorted(groups)}


COLUMNS = (
    *("at", "arrived_per_s", "ended_per_s", "tokens_per_s"),
    *("open", "waiting", "ttft_p50", "ttft_p99", "kept"),
)
"""Names of a history row's columns."""


def _latencies(ended: Iterable[EndedRequest]) -> Figures:
    """Return numbers, percentiles and the share of kept promises; no figure without a value."""
    listed = list(ended)
    figures: Figures = {
        "ended": len(listed),
        "failed": sum(not each.is_finished for each in listed),
    }
    finished = [each for each in listed if each.is_finished]
    for name in ("ttft", "ttfat", "tpot"):
        values = sorted(v for each in finished if (v := getattr(each, name)) is not None)
        if values:
            figures[f"{name}_p50"] = percentile(values, 0.5)
            figures[f"{name}_p99"] = percentile(values, 0.99)
    kept = [each.is_kept for each in listed if each.is_kept is not None]
    if kept:
        figures["kept"] = sum(kept) / len(kept)
    return figures
