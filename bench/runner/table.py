"""Systems side by side, with the change and the verdict of each figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from rich.console import Console

from bench.runner.verdict import LEAST_PAIRS, WORSE, ComparedFigure, Figure, Judgement
from results.by_class import number
from results.output import titled_table

Columns = Mapping[str, Sequence[Mapping[str, float]]]
"""Figures by system, a run a seed, the same seeds for all."""


def print_columns(
    console: Console,
    title: str,
    columns: Columns,
    figures: Sequence[Figure],
    changes: Mapping[str, Sequence[ComparedFigure]],
    middle: Callable[[Sequence[float]], float] = fmean,
) -> bool:
    """Print a row for each figure that a run has: its ``middle``, with the least and greatest run.

    ``changes`` of every further system stand beside the one there is, or in a table of their own
    from two runs on; return whether they are printed.
    """
    first, *others = columns
    values = {each.name: _over_runs(each.name, columns, middle) for each in figures}
    rows = [(each.title, *cells) for each in figures if any(cells := values[each.name])]
    if len(others) != 1:
        console.print(titled_table(title, ("", *columns), rows))
    if not others or (len(others) > 1 and len(columns[first]) < 2):
        return False
    by_title = {
        name: {row.figure.title: row for row in of_other} for name, of_other in changes.items()
    }
    if len(others) == 1:
        (of_other,) = by_title.values()
        rows = [(*row, *_judged(of_other.get(row[0]))) for row in rows]
        titles = ("", *columns, "change", "interval", "verdict")
        console.print(titled_table(title, titles, rows))
    else:
        rows = [
            (row[0], *(" ".join(_judged(by_title[name].get(row[0]))) for name in others))
            for row in rows
        ]
        console.print(titled_table(f"{title}: changes from {first}", ("", *others), rows))
    for name, of_changes in changes.items():
        counts = Counter(row.verdict for row in of_changes)
        said = ", ".join(f"{counts[each]} {each.value}" for each in Judgement if counts[each])
        console.print(f"{name} against {first}: {said}", markup=False)
    console.print()
    return True


def print_rule(console: Console) -> None:
    """Print how the verdicts come about."""
    console.print(
        "Figures are over the seeds (least to greatest), of the same requests for all; a change is "
        f"the mean of the pairs'. It counts if it is over its bar ({WORSE:.0%} of the first "
        "system, and at least what a user notices) and its 95 % interval leaves 0 out; there is no "
        "difference where the interval lies within the bar. Fewer than "
        f"{LEAST_PAIRS} pairs have no verdict. With so many rows, one in twenty may differ by "
        "chance.",
        highlight=False,
    )


def _over_runs(
    name: str, columns: Columns, middle: Callable[[Sequence[float]], float]
) -> list[str]:
    """Return a figure's cells; "" for systems that have none."""
    cells = []
    for runs in columns.values():
        values = [run[name] for run in runs if name in run]
        cell = number(middle(values)) if values else ""
        if len(values) > 1:
            cell += f" ({number(min(values))} to {number(max(values))})"
        cells.append(cell)
    return cells


def _judged(row: ComparedFigure | None) -> tuple[str, str, str]:
    """Return the change, half of its interval, and the verdict."""
    if row is None:
        return "", "", ""
    before = fmean(row.before)
    relative = f" ({row.change / before:+.0%})" if before else ""
    noise = "-" if math.isinf(row.noise) else f"±{number(row.noise)}"
    return f"{row.change:+.3g}{relative}", noise, row.verdict.value
