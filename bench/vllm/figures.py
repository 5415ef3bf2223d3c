"""The figures of one contender under one load, by class, and of several runs side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from bench.serve.classes import Alone, as_served
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest
from headway.metrics import percentile

_CLASSES: Mapping[str, Callable[[Planned], bool]] = MappingProxyType(
    {
        "chats": lambda planned: planned.is_read and not planned.reasons,
        "reasoning": lambda planned: planned.is_read and planned.reasons,
        "unread": lambda planned: not planned.is_read,
    }
)
_TIMES: Mapping[str, str] = MappingProxyType(
    {"ttft": "TTFT", "ttfat": "TTFAT", "tpot": "TPOT", "ttlt": "E2E"}
)
_SHARES = (0.5, 0.99)


def _rows() -> Iterator[tuple[str, str]]:
    for name in _CLASSES:
        for time, said in _TIMES.items():
            if time != "ttfat" or name == "reasoning":
                for share in _SHARES:
                    yield (
                        f"{name}_{time}_p{share:.0%}"[:-1],
                        f"{name}: {said} P{share:.0%}"[:-1] + ", s",
                    )
        if name != "unread":
            yield f"{name}_in_time", f"{name}: read in time"


ROWS: Mapping[str, str] = MappingProxyType(
    {
        **dict(_rows()),
        "tokens_per_s": "output tokens/s",
        "cpu": "cores in use",
        "num_right": "right answers",
        "num_failed": "failed requests",
        "seconds": "seconds to the last end",
    }
)
"""Titles by figure, in the order of the table."""


def figures_of(
    requests: Sequence[ReplayedRequest], alone: Alone, cpu_seconds: float
) -> dict[str, float]:
    """Return all figures; a class that is not there has none.

    ``alone``: the times of a request that runs alone, one for all runs; ``cpu_seconds``: those of
    the contender's processes meanwhile. A request is read in time as
    :attr:`ServedRequest.is_read_in_time` says; one that failed is not.
    """
    figures: dict[str, float] = {}
    for name, belongs in _CLASSES.items():
        own = [each for each in requests if belongs(each.planned)]
        times = [each.times for each in own if each.times is not None]
        for time in _TIMES:
            values = sorted(value for each in times if (value := each.metric(time)) is not None)
            for share in _SHARES if values else ():
                figures[f"{name}_{time}_p{share:.0%}"[:-1]] = percentile(values, share)
        if own and name != "unread":
            served = (as_served(each, alone) for each in own)
            in_time = (each is not None and each.is_read_in_time for each in served)
            figures[f"{name}_in_time"] = statistics.fmean(in_time)
    seconds = max((each.ended_at for each in requests), default=0.0)
    num_tokens = sum(each.times.num_output_tokens for each in requests if each.times is not None)
    figures["tokens_per_s"] = num_tokens / seconds if seconds else 0.0
    figures["cpu"] = cpu_seconds / seconds if seconds else 0.0
    figures["num_right"] = sum(each.correct is True for each in requests)
    figures["num_failed"] = sum(bool(each.error_kind) for each in requests)
    figures["seconds"] = seconds
    return {name: figures[name] for name in ROWS if name in figures}


Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""Figures by contender, a run each seed."""


def cells_of(runs: Runs, rows: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield a table's rows: the median over the seeds, with the least and the most behind it."""
    for name, title in rows.items():
        columns = [[run[name] for run in each if name in run] for each in runs.values()]
        if any(columns):
            yield (title, *map(_bars, columns))


def ratios_of(runs: Runs) -> Runs:
    """Return each run's figures over those of the first contender with the same seed."""
    first = next(iter(runs.values()))
    return {
        name: [
            {each: run[each] / base[each] for each in run if base.get(each)}
            for run, base in zip(own, first, strict=True)
        ]
        for name, own in runs.items()
    }


def _bars(values: Sequence[float]) -> str:
    if not values:
        return ""
    median = f"{statistics.median(values):.3g}"
    return median if len(values) == 1 else f"{median} ({min(values):.3g} to {max(values):.3g})"
