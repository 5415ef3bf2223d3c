"""The figures of one contender under one load, by class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from bench.runner.verdict import Figure, spread
from bench.serve.classes import Alone, as_served
from bench.serve.plan import Planned
from bench.serve.replay import ReplayedRequest

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
_NOTICE = 0.1  # seconds
_TPOT_NOTICE = 0.01


def _by_class() -> Iterator[Figure]:
    for name in _CLASSES:
        for time, said in _TIMES.items():
            if time != "ttfat" or name == "reasoning":
                notice = _TPOT_NOTICE if time == "tpot" else _NOTICE
                for share in (50, 99):
                    title = f"{name}: {said} P{share}, s"
                    yield Figure(f"{name}_{time}_p{share}", title, notice)
        if name != "unread":
            yield Figure(f"{name}_in_time", f"{name}: read in time", 0.01, more_is_better=True)


FIGURES = (
    *_by_class(),
    Figure("tokens_per_s", "output tokens/s", 0.0, more_is_better=True),
    Figure("cpu", "cores in use", 0.01),
    Figure("num_right", "right answers", 1.0, more_is_better=True),
    Figure("num_failed", "failed requests", 1.0),
    Figure("seconds", "seconds to the last end", 0.1),
)


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
            values = (value for each in times if (value := each.metric(time)) is not None)
            figures |= spread(f"{name}_{time}", values)
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
    return figures
