"""``headway bench abuse``: what one key's abuses do to another key's short request."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from bench.abuses.catalogue import CATALOGUE
from bench.abuses.run import Abused, AbuseTrial
from cli.options import add_json, add_model, require_ranges
from headway.errors import invalid
from results.output import make_table, write_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "A catalogue of abuses by one key, each beside short requests of another, on a cluster of "
        "this machine with one unified worker. Exit status 1: a request was refused, got other "
        "tokens, or anybody got a 5xx."
    )
    add = parser.add_argument
    usual = Abused("")
    add("--preset", default=usual.preset, help="policies (headway)")
    add("--only", default="", metavar="TEXT", help="abuses whose name has this text")
    add("--requests", type=int, default=usual.num_asked, metavar="N", help="beside each abuse (5)")
    add_model(parser)
    add_json(parser, "write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Abuse, and print; HeadwayError for a number out of range or a text that is in no name."""
    require_ranges(args, requests=(1, 1000))
    abuses = [abuse for abuse in CATALOGUE if args.only in abuse.name]
    if not abuses:
        raise invalid("--only", args.only, "a part of: " + ", ".join(a.name for a in CATALOGUE))
    console = Console()
    abused = Abused(args.model, args.preset, num_asked=args.requests)
    with tempfile.TemporaryDirectory(prefix="headway-abuse-") as folder:
        rows = asyncio.run(abused.rows(abuses, Path(folder), console.print))
    titles = ("abuse", "alone s", "median s", "times alone", "worst", "answers to the abuser")
    console.print(make_table(titles, map(_cells, rows)))
    faults = [f"{row.name}: {fault}" for row in rows for fault in row.faults]
    for fault in faults:
        console.print(fault, style="red")
    write_json(args.json, [_row(row) for row in rows])
    return 1 if faults else 0


def _cells(row: AbuseTrial) -> tuple[str, ...]:
    usual, worst = row.times_alone
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(row.statuses.items()))
    return (
        row.name,
        f"{row.alone:.3f}",
        f"{usual * row.alone:.3f}",
        f"{usual:.1f}",
        f"{worst:.1f}",
        statuses,
    )


def _row(row: AbuseTrial) -> dict[str, object]:
    usual, worst = row.times_alone
    return {
        "abuse": row.name,
        "alone": row.alone,
        "seconds": row.seconds,
        "median_times_alone": usual,
        "worst_times_alone": worst,
        "abuser_answers": {str(status): count for status, count in row.statuses.items()},
        "faults": row.faults,
    }
