"""``headway bench policies``: how long a decision takes, and how that grows with its size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.decisions.decisions import Timed


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "policies",
        help="how long decisions take",
        description="Medians of repeated decisions on one core, building of arrays included.",
    )
    add = parser.add_argument
    add("--repeats", type=int, default=25, metavar="N", help="of every decision (25)")
    add("--json", type=Path, metavar="FILE", help="write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; HeadwayError for a number out of range."""
    from dataclasses import asdict

    from bench.decisions.decisions import measure_all
    from headway.errors import require_between

    require_between("--repeats", args.repeats, 1, 100_000)
    rows = measure_all(args.repeats)
    _print(rows)
    write_json(args.json, [{**asdict(row), "met": row.met} for row in rows])
    return 0


def _print(rows: Sequence[Timed]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in ("decision", "size", "median ms", "best ms", "target ms", "met"):
        justify = "right" if title.endswith("ms") else "left"
        table.add_column(title, justify=justify)  # type: ignore[arg-type]  # a literal
    for row in rows:
        target = "" if row.target_ms is None else f"{row.target_ms:g}"
        met = "" if row.met is None else ("yes" if row.met else "no")
        cells = (f"{row.median_ms:.3f}", f"{row.best_ms:.3f}", target, met)
        table.add_row(row.decision, row.size, *cells)
    Console().print(table)
