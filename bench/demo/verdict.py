"""A verdict for each figure: better, worse, or within the noise of the pairs.

Both presets of a pair serve the same requests, one after the other. The change of a figure is the
mean of its differences, pair by pair. It counts if it is over both of:

- the **bar**: 2 % of the first preset's mean, and not less than what a user notices;
- the **noise**: half of the 95 % interval of that mean (Student's t over the pairs).

One pair has no noise that could be known, so it has no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from bench.by_class import KEPT, PREEMPTIONS
from headway.felt import TITLES

WORSE = 0.02  # share of the first preset's mean
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 %, from 1 degree on
_FROM_TEN = 2.23  # for more degrees of freedom: never too small


class Figure(NamedTuple):
    """A row of the table; ``notice``: the least difference that a user notices."""

    name: str
    title: str
    notice: float
    more_is_better: bool = False


FIGURES = (
    *(Figure(name, title, 0.1) for name, title in TITLES.items()),
    Figure("qoe_kept", KEPT, 0.01, more_is_better=True),
    Figure("preemptions", PREEMPTIONS, 0.05),
    Figure("pass_time", "mean of a decode pass (s)", 0.0005),
)


class Judgement(StrEnum):
    """The verdict of the pairs on a figure."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within noise"
    NONE = "one pair: none"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of two presets, pair by pair."""

    figure: Figure
    before: tuple[float, ...]
    after: tuple[float, ...]

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
        """Half of the 95 % interval of the mean difference; inf for one pair."""
        degrees = len(self.before) - 1
        if not degrees:
            return math.inf
        student = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _FROM_TEN
        return student * statistics.stdev(self._differences) / math.sqrt(degrees + 1)

    @property
    def verdict(self) -> Judgement:
        """Judge by the rule above."""
        if len(self.before) == 1:
            return Judgement.NONE
        if abs(self.change) <= max(self.bar, self.noise):
            return Judgement.NOISE
        is_better = (self.change > 0.0) == self.figure.more_is_better
        return Judgement.BETTER if is_better else Judgement.WORSE

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
) -> list[ComparedFigure]:
    """Compare two presets by the figures of their runs, pair by pair.

    A figure that a run lacks (none of that class finished) leaves its pair out of that row.
    """
    rows = []
    for figure in figures:
        pairs = [
            (one[figure.name], other[figure.name])
            for one, other in zip(before, after, strict=True)
            if figure.name in one and figure.name in other
        ]
        if pairs:
            firsts, seconds = zip(*pairs, strict=True)
            rows.append(ComparedFigure(figure, firsts, seconds))
    return rows
