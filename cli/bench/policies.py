"""``headway bench policies``: how long a decision takes, and how that grows with its size."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console

from bench.decisions.decisions import TimedDecision, measure_all
from cli.options import add_json, require_ranges
from results.output import make_table, write_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = "Medians of repeated decisions on one core, building of arrays included."
    add = parser.add_argument
    add("--repeats", type=int, default=25, metavar="N", help="of every decision (25)")
    add_json(parser, "write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; HeadwayError for a number out of range."""
    require_ranges(args, repeats=(1, 100_000))
    decisions = measure_all(args.repeats)
    titles = ("decision", "size", "median ms", "best ms", "target ms", "met")
    Console().print(make_table(titles, _rows(decisions), left=("decision", "size", "met")))
    write_json(args.json, [{**asdict(each), "met": each.met} for each in decisions])
    return 0


def _rows(decisions: Sequence[TimedDecision]) -> Iterator[tuple[str, ...]]:
    for each in decisions:
        target = "" if each.target_ms is None else f"{each.target_ms:g}"
        met = "" if each.met is None else ("yes" if each.met else "no")
        yield (
            each.decision,
            each.size,
            f"{each.median_ms:.3f}",
            f"{each.best_ms:.3f}",
            target,
            met,
        )
