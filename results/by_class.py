"""The one table of figures by class (``headway.class_metrics``): a row a figure, a column a run."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console

from headway.class_metrics import TITLES
from headway.metrics import VIOLATION
from results.output import make_table

KEPT = f"readers: share of QoE >= {VIOLATION}"
PREEMPTIONS = "preemptions a request"
_ROWS = {
    **TITLES,
    "qoe_kept": KEPT,
    "ttlt_p99_solo": "TTLT P99: share of solo time",
    "preemptions": PREEMPTIONS,
}


def print_by_class(console: Console, title: str, runs: Mapping[str, Mapping[str, float]]) -> None:
    """Print the figures of runs by name; nothing where none has any."""
    rows = [
        (said, *(number(figures.get(name)) for figures in runs.values()))
        for name, said in _ROWS.items()
        if any(name in figures for figures in runs.values())
    ]
    if rows:
        console.print(make_table((title, *runs), rows, box=box.HEAVY_HEAD))


def number(value: float | None, scale: float = 1.0) -> str:
    """Return a figure as it is shown, times ``scale``; a dash for None."""
    if value is None:
        return "-"
    value *= scale
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
