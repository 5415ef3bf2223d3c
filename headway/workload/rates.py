"""Rates over time: arrivals that follow a table of rates, as people log them.

A CSV or JSON lines with ``at`` (s) and either ``rate`` (requests/s) or a column for each class of
requests. A row's rates hold until the next row; the last row's for as long as those before it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from headway.errors import Code, HeadwayError, invalid
from headway.workload.arrivals import gaps
from headway.workload.rows import BadValueError, Rows, instant, open_text, read_rows
from headway.workload.traces import TraceRow

_AT, _RATE = "at", "rate"


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Rates by stretch of time and by class: ``starts_at`` (n + 1,), ``rates`` (n, classes).

    ``kinds``: the names of the classes, ("",) where all requests are alike. ``process``: arrivals
    at a rate of 1, whose clock then runs as fast as the rate.
    """

    starts_at: Sequence[float]
    rates: Sequence[Sequence[float]]
    kinds: Sequence[str]
    process: str = "poisson"
    burstiness: float = 1.0

    @property
    def mean_rate(self) -> float:
        """Requests per second from the first row to the end."""
        return self._expected()[-1] / (self.starts_at[-1] - self.starts_at[0])

    def between(self, start: float, end: float) -> RateCurve:
        """Return what lies from ``start`` to ``end``, seconds from its beginning."""
        first = self.starts_at[0]
        bounds = [
            (max(begin - first, start), min(until - first, end))
            for begin, until in pairwise(self.starts_at)
        ]
        stretches = zip(bounds, self.rates, strict=True)
        kept = [(bound, row) for bound, row in stretches if bound[0] < bound[1]]
        if not kept or not any(sum(row) for _, row in kept):
            raise invalid("workload.start and end", (start, end), "a time with requests")
        starts_at = [bound[0] for bound, _ in kept]
        return replace(self, starts_at=[*starts_at, kept[-1][0][1]], rates=[row for _, row in kept])

    def replay(self, rate: float, rng: random.Random) -> Iterator[TraceRow]:
        """Yield arrivals, from 0 s; all rates are scaled to a mean of ``rate``, 0 for none."""
        scale = rate / self.mean_rate if rate else 1.0
        expected = [scale * number for number in self._expected()]
        place, due = 0, 0.0
        for gap in gaps(self.process, 1.0, rng, burstiness=self.burstiness):
            due += gap
            while place < len(self.rates) and expected[place + 1] <= due:
                place += 1
            if place == len(self.rates):
                return
            row = self.rates[place]
            since = (due - expected[place]) / (scale * sum(row))
            at = self.starts_at[place] - self.starts_at[0] + since
            yield TraceRow(at, kind=self._drawn(row, rng))

    def _drawn(self, row: Sequence[float], rng: random.Random) -> str:
        return self.kinds[0] if len(self.kinds) == 1 else rng.choices(self.kinds, row)[0]

    def _expected(self) -> list[float]:
        """Return the requests that are expected by each instant, (n + 1,)."""
        stretches = zip(pairwise(self.starts_at), self.rates, strict=True)
        return [0.0, *accumulate((until - begin) * sum(row) for (begin, until), row in stretches)]


def load_rates(path: Path) -> RateCurve:
    """Load a file, gzipped (.gz) or not; HeadwayError says what is wrong with it."""
    with open_text(path, "workload.rates") as lines:
        return read_curve(lines, str(path))


def read_curve(lines: Iterable[str], name: str) -> RateCurve:
    """Return the rates in a text; HeadwayError names the line and the value."""
    rows = read_rows(lines, name)
    kinds = [key for key in rows.keys if key != _AT]
    if _AT not in rows.keys or not kinds or (_RATE in kinds and len(kinds) > 1):
        limit = "with at, and either rate or a column for each class"
        raise rows.wrong(rows.number, BadValueError("the first row", rows.first, limit))
    starts_at, rates = _table(rows, kinds)
    if not any(map(any, rates)):
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} has no rate over 0")
    ends_at = 2 * starts_at[-1] - starts_at[-2]
    return RateCurve([*starts_at, ends_at], rates, [""] if kinds == [_RATE] else kinds)


def _table(rows: Rows, kinds: Sequence[str]) -> tuple[list[float], list[list[float]]]:
    starts_at: list[float] = []
    rates: list[list[float]] = []
    for number, record in rows.records:
        try:
            at = instant(record, _AT, "seconds")
            if starts_at and at <= starts_at[-1]:
                raise BadValueError(_AT, record.get(_AT), "later than that of the row before")
            starts_at.append(at)
            rates.append([instant(record, kind, "requests/s") for kind in kinds])
        except BadValueError as bad:
            raise rows.wrong(number, bad) from None
    if len(rates) < 2:
        message = f"{rows.name} has {len(rates)} rows: two say how long a rate holds"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    return starts_at, rates
