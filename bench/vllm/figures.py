"""The figures of one contender under one load, by class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from bench.serve.classes import Alone, as_served, by_class
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from headway.class_metrics import TITLES
from headway.metrics import Spread

ROWS: Mapping[str, str] = MappingProxyType(
    {
        "ttft_mean": "TTFT mean, s",
        "ttft_p99": "TTFT P99, s",
        "ttfat_mean": "TTFAT mean, s",
        "ttfat_p99": "TTFAT P99, s",
        "tpot_mean": "TPOT mean, s",
        "ttlt_mean": "TTLT mean, s",
        "ttlt_p99": "TTLT P99, s",
        "slowdown_p50": "slowdown P50",
        **TITLES,
        "chat_kept": "chats: attainment",
        "reasoning_kept": "reasoning: attainment",
        "unread_kept": "unread: attainment",
        "chat_in_time": "chats: read in time",
        "reasoning_in_time": "reasoning: read in time",
        "num_right": "right answers",
        "num_failed": "failed requests",
        "seconds": "seconds to the last end",
    }
)
"""Titles by figure, in the order of the table."""

_CLASSES: Mapping[str, Callable[[Planned], bool]] = MappingProxyType(
    {
        "chat": lambda planned: planned.is_read and not planned.reasons,
        "reasoning": lambda planned: planned.is_read and planned.reasons,
        "unread": lambda planned: not planned.is_read,
    }
)


def figures_of(
    requests: Sequence[ReplayedRequest], alone: Alone, most_slowdown: float
) -> dict[str, float]:
    """Return all figures; ``alone``: the times of a request that runs alone, one for all runs.

    A request attains its objective if its TTLT is at most ``most_slowdown`` times its time alone;
    one that failed does not. It is read in time as :attr:`ServedRequest.is_read_in_time` says.
    """
    found = by_class(requests, alone)
    for name in ("ttft", "ttfat", "tpot", "ttlt"):
        values = (each.times.metric(name) for each in requests if each.times is not None)
        spread = Spread.of(value for value in values if value is not None)
        if spread is not None:
            found |= {f"{name}_mean": spread.mean, f"{name}_p99": spread.p99}
    for name, belongs in _CLASSES.items():
        own = [as_served(each, alone) for each in requests if belongs(each.planned)]
        if not own:
            continue
        found[f"{name}_kept"] = statistics.fmean(
            each is not None and (each.slowdown or 0.0) <= most_slowdown for each in own
        )
        if name != "unread":
            in_time = (each is not None and each.is_read_in_time for each in own)
            found[f"{name}_in_time"] = statistics.fmean(in_time)
    found["num_right"] = sum(each.correct is True for each in requests)
    found["num_failed"] = sum(bool(each.error_kind) for each in requests)
    found["seconds"] = max((each.ended_at for each in requests), default=0.0)
    return found


def cells(
    runs: Mapping[str, Mapping[str, float]], say: Callable[[float | None], str]
) -> Iterable[tuple[str, ...]]:
    """Yield the rows of a table, a column for each run, without those that nobody has."""
    for name, title in ROWS.items():
        if any(name in figures for figures in runs.values()):
            yield (title, *(say(figures.get(name)) for figures in runs.values()))
