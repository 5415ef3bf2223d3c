"""Two presets side by side, with the change and the verdict of each figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console

from bench.demo.verdict import LEAST_PAIRS, WORSE, ComparedFigure, Judgement
from bench.serve.replay import ReplayedRequest
from results.by_class import number
from results.output import titled_table

Values = Mapping[str, Sequence[float]]
_DRAWN = ("ttft", "ttfat", "ttlt")


def values_of(outcomes: Sequence[ReplayedRequest]) -> Values:
    """Return every finished request's times, seconds, by metric: what plots draw."""
    times = [each.times for each in outcomes if each.times is not None]
    return {
        name: [value for each in times if (value := each.metric(name)) is not None]
        for name in _DRAWN
    }


def print_compared(
    console: Console, title: str, presets: tuple[str, str], rows: Sequence[ComparedFigure]
) -> None:
    """Print one row for each figure, with its least and greatest run, then count the verdicts."""
    cells = [
        (
            row.figure.title,
            _over_runs(row.before),
            _over_runs(row.after),
            _change(row),
            _interval(row),
            row.verdict.value,
        )
        for row in rows
    ]
    titles = ("", *presets, "change", "interval, bar", "verdict")
    table = titled_table(title, titles, cells)
    console.print(table)
    counts = Counter(row.verdict for row in rows)
    said = ", ".join(f"{counts[each]} {each.value}" for each in Judgement if counts[each])
    console.print(f"{presets[1]} against {presets[0]}: {said}\n", markup=False)


def print_rule(console: Console) -> None:
    """Print how the verdicts come about."""
    console.print(
        "Figures are means over the pairs (least to greatest), of the same requests under both. A "
        "change counts if it is over its bar "
        f"({WORSE:.0%} of the first preset, and at least 0.1 s, 0.1 of slowdown, one reader in a "
        "hundred, 0.05 preemptions) and its 95 % interval leaves 0 out; there is no difference "
        "where the interval lies within the bar. Fewer than "
        f"{LEAST_PAIRS} pairs have no verdict. With so many rows, one in twenty may differ by "
        "chance.",
        highlight=False,
    )


def _over_runs(values: Sequence[float]) -> str:
    mean = number(fmean(values))
    if len(values) == 1:
        return mean
    return f"{mean} ({number(min(values))} to {number(max(values))})"


def _change(row: ComparedFigure) -> str:
    before = fmean(row.before)
    relative = f" ({row.change / before:+.0%})" if before else ""
    return f"{row.change:+.3g}{relative}"


def _interval(row: ComparedFigure) -> str:
    """Return half of the change's interval, and the bar."""
    noise = "-" if math.isinf(row.noise) else f"±{number(row.noise)}"
    return f"{noise}, {number(row.bar)}"
