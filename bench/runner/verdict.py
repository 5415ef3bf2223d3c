"""A verdict for each figure, from the same requests to both systems.

The change of a figure is the mean of its differences, pair by pair. Two things decide:

- the **bar**: 2 % of the first system's mean, and not less than what a user notices;
- the **interval**: 95 % around the change. Its standard error comes from drawing pairs, and in each
  of them requests, again and again (``bench.runner.paired``); a figure without requests has that of
  the pairs' differences. Student's t over the pairs that it comes from makes it as wide as few of
  them ask for. Differences that are all the same, but for 0, have no interval.

Better or worse: the change is over the bar, and the interval leaves 0 out. No difference: the
interval lies within the bar. Anything else is unclear. Two pairs say nothing about a third.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from bench.runner.paired import PairedSamples, standard_error
from headway.class_metrics import TITLES
from headway.metrics import Spread
from results.by_class import KEPT, PREEMPTIONS
from results.interval import LEAST_RUNS, half_interval, student

WORSE = 0.02  # share of the first system's mean
LEAST_PAIRS = LEAST_RUNS


class Figure(NamedTuple):
    """A row of the table; ``notice``: the least difference that a user notices.

    ``sample``: the requests' values that it sums up, "" for none; by the percentile ``share``, or
    by their mean where that is None.
    """

    name: str
    title: str
    notice: float
    more_is_better: bool = False
    sample: str = ""
    share: float | None = None


def _tails() -> list[Figure]:
    """Return P90 beside P99 of every class: a pair has too few requests for a sure P99."""
    figures = []
    for name, title in TITLES.items():
        sample = name.removesuffix("_p99")
        for share in (90, 99):
            said = title.replace("P99", f"P{share}")
            figures.append(Figure(f"{sample}_p{share}", said, 0.1, False, sample, share / 100))
    return figures


FIGURES = (
    *_tails(),
    Figure("qoe_kept", KEPT, 0.01, more_is_better=True, sample="qoe_kept"),
    Figure("preemptions", PREEMPTIONS, 0.05),
    Figure("pass_time", "mean of a decode pass (s)", 0.0005),
)


def spread(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return ``NAME_mean``, ``_p50``, ``_p90`` and ``_p99`` of the values; none for no value."""
    of_all = Spread.of(values)
    return {} if of_all is None else {f"{name}_{each}": x for each, x in asdict(of_all).items()}


class Judgement(StrEnum):
    """The verdict of the pairs on a figure."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "no difference"
    UNCLEAR = "unclear"
    TOO_FEW = "too few pairs"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of two systems, pair by pair.

    ``interval``: half of the 95 % interval of the change by its requests; None for that of the
    pairs' differences.
    """

    figure: Figure
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: float | None = None

    @property
    def change(self) -> float:
        """Mean difference, after less before."""
        return statistics.fmean(self._differences)

    @property
    def bar(self) -> float:
        """The least difference that counts."""
        return max(self.figure.notice, WORSE * statistics.fmean(self.before))

    @property
    def noise(self) -> float:
        """Half of the 95 % interval of the mean difference; inf where the pairs do not tell it."""
        if self.interval is None or len(self.before) < LEAST_PAIRS:
            return half_interval(self._differences)
        return self.interval

    @property
    def verdict(self) -> Judgement:
        """Judge by the rule above."""
        if len(self.before) < LEAST_PAIRS:
            return Judgement.TOO_FEW
        if abs(self.change) > max(self.bar, self.noise):
            is_better = (self.change > 0.0) == self.figure.more_is_better
            return Judgement.BETTER if is_better else Judgement.WORSE
        is_within = abs(self.change) + self.noise <= self.bar
        return Judgement.EQUAL if is_within else Judgement.UNCLEAR

    @property
    def _differences(self) -> list[float]:
        return [after - before for before, after in zip(self.before, self.after, strict=True)]

    def packed(self) -> dict[str, Any]:
        """Return the row for JSON."""
        noise = None if math.isinf(self.noise) else self.noise
        return {
            **asdict(self),
            "figure": self.figure.name,
            "change": self.change,
            "bar": self.bar,
            "noise": noise,
            "verdict": self.verdict.value,
        }


def compared(
    before: Sequence[Mapping[str, float]],
    after: Sequence[Mapping[str, float]],
    figures: Sequence[Figure] = FIGURES,
    samples: Sequence[PairedSamples] = (),
) -> list[ComparedFigure]:
    """Compare two systems by the figures of their runs, pair by pair.

    ``samples``: the same requests' values under both, a pair each. A figure that a run lacks (none
    of that class finished) leaves its pair out of that row.
    """
    rows = []
    for figure in figures:
        pairs = [
            (one[figure.name], other[figure.name])
            for one, other in zip(before, after, strict=True)
            if figure.name in one and figure.name in other
        ]
        if not pairs:
            continue
        firsts, seconds = zip(*pairs, strict=True)
        interval = None
        values = [sample for each in samples if (sample := each.get(figure.sample)) is not None]
        if len(values) >= LEAST_PAIRS:
            interval = student(len(values)) * standard_error(values, figure.share)
        elif values:
            interval = math.inf  # of too few pairs
        rows.append(ComparedFigure(figure, firsts, seconds, interval))
    return rows
