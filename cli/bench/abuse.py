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
from headway.presets import PRESETS
from results.output import make_table, write_json

_ALL = "all"
_BAR = 3.0
"""Times its time alone that the slowest of the other key's requests may take."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "A catalogue of abuses by one key, each beside short requests of another, on a cluster of "
        "this machine with one unified worker. Exit status 1: a request was refused, got other "
        "tokens, or anybody got a 5xx. Times are for reading: they depend on the machine."
    )
    add = parser.add_argument
    usual = Abused("")
    add(
        "--preset", default=usual.preset, help=f"policies, or {_ALL}: one after the other (headway)"
    )
    add("--only", default="", metavar="TEXT", help="abuses whose name has this text")
    add("--requests", type=int, default=usual.num_asked, metavar="N", help="beside each abuse (5)")
    add(
        "--least-pass-time",
        type=float,
        default=0.0,
        metavar="S",
        help="of every pass: an engine of fixed speed, as a GPU's beside two cores (0)",
    )
    add_model(parser)
    add_json(parser, "write the rows")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Abuse, and print; HeadwayError for a number out of range or a text that is in no name."""
    require_ranges(args, requests=(1, 1000), least_pass_time=(0, 10))
    abuses = [abuse for abuse in CATALOGUE if args.only in abuse.name]
    if not abuses:
        raise invalid("--only", args.only, "a part of: " + ", ".join(a.name for a in CATALOGUE))
    console = Console()
    rows, faults = [], []
    for preset in PRESETS if args.preset == _ALL else (args.preset,):
        abused = Abused(
            args.model, preset, num_asked=args.requests, least_pass_time=args.least_pass_time
        )
        with tempfile.TemporaryDirectory(prefix="headway-abuse-") as folder:
            trials = asyncio.run(abused.rows(abuses, Path(folder), console.print))
        titles = ("abuse", "alone s", "median s", "times alone", "worst", "answers to the abuser")
        console.print(make_table(titles, map(_cells, trials)))
        over = [trial.name for trial in trials if trial.times_alone[1] > _BAR]
        console.print(
            f"{preset}: under {len(trials) - len(over)} of {len(trials)} abuses each of the other "
            f"key's requests took at most {_BAR:g} times its time alone."
        )
        if over:
            console.print("Longer: " + ", ".join(over))
        rows += [_row(preset, trial) for trial in trials]
        faults += [f"{preset}: {trial.name}: {fault}" for trial in trials for fault in trial.faults]
    for fault in faults:
        console.print(fault, style="red")
    write_json(args.json, rows)
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


def _row(preset: str, row: AbuseTrial) -> dict[str, object]:
    usual, worst = row.times_alone
    return {
        "preset": preset,
        "abuse": row.name,
        "alone": row.alone,
        "seconds": row.seconds,
        "median_times_alone": usual,
        "worst_times_alone": worst,
        "abuser_answers": {str(status): count for status, count in row.statuses.items()},
        "faults": row.faults,
    }
