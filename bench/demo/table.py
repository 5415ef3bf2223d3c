"""A run's figures, and two or more of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from rich import box
from rich.console import Console

from bench.output import make_table
from bench.serve.replay import ReplayedRequest
from headway.felt import READER_PACE, TITLES
from headway.metrics import VIOLATION, percentile, qoe

Values = Mapping[str, Sequence[float]]
_SHOWN = (
    ("ttft", "TTFT"),
    ("ttfat", "TTFAT"),
    ("ttlt", "TTLT"),
)


def values_of(outcomes: Sequence[ReplayedRequest]) -> Values:
    """Return every finished request's times, seconds, and its QoE, by metric."""
    times = [each.times for each in outcomes if each.times is not None]
    found = {
        name: [value for each in times if (value := each.metric(name)) is not None]
        for name, _ in _SHOWN
    }
    reading = (_qoe(each) for each in outcomes)
    return {**found, "qoe": [value for value in reading if value is not None]}


def _qoe(outcome: ReplayedRequest) -> float | None:
    """Measure from the first answering token on; None for fewer than two."""
    times = outcome.times
    if times is None or times.first_answer_at is None:
        return None
    instants = times.first_token_at + np.concatenate(([0.0], np.cumsum(outcome.gaps)))
    answer = instants[instants >= times.first_answer_at - 1e-9]
    return qoe(answer, READER_PACE) if len(answer) > 1 else None


def figures(values: Values) -> dict[str, float]:
    """Return the table's figures by the words that head them; nothing for no values."""
    found: dict[str, float] = {}
    for name, title in _SHOWN:
        ordered = sorted(values[name])
        if ordered:
            found[f"{title} P50, s"] = percentile(ordered, 0.5)
            found[f"{title} P99, s"] = percentile(ordered, 0.99)
    if values["qoe"]:
        found["QoE, mean"] = fmean(values["qoe"])
        kept = [value >= VIOLATION for value in values["qoe"]]
        found[f"QoE of {VIOLATION} or more, %"] = 100.0 * fmean(kept)
    return found


def titled(by_class: Mapping[str, float]) -> dict[str, float]:
    """Return the tails of each class by the words that head them."""
    return {title: by_class[name] for name, title in TITLES.items() if name in by_class}


def print_table(console: Console, title: str, runs: Mapping[str, Mapping[str, float]]) -> None:
    """Print a column a run; the last one is set against the first."""
    first, last = next(iter(runs.values())), list(runs.values())[-1]
    rows = []
    for row in first:
        shown = [f"{run[row]:.4g}" if row in run else "" for run in runs.values()]
        rows.append((row, *shown, _change(first[row], last.get(row))))
    table = make_table(
        ("", *runs, "change"), rows, title=title, title_justify="left", box=box.HEAVY_HEAD
    )
    console.print(table)


def _change(before: float, after: float | None) -> str:
    if after is None or before == 0.0:
        return ""
    return f"{100.0 * (after / before - 1.0):+.0f} %"
