"""``headway profile check``: how well the simulator predicts this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cli.options import add_json, require_ranges
from cli.profile_run import add_deployment
from planning.profile.calibration import Calibration
from planning.profile.cases import HeldOutCase, chosen
from planning.profile.check import CaseReport, overall
from planning.profile.live import LiveModel, runs_folder
from planning.profile.matrix import START_SECONDS, Matrix
from planning.profile.report import case_notes, case_table, overall_table
from results.output import write_json
from results.progress import bar

_SECONDS_ASKED = 20.0
"""About what 150 requests take; the rates are not known beforehand."""
_SECONDS_SIMULATED = 8.0
"""About what predicting 150 requests takes once, of one core."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Asks live clusters loads that nothing was fitted to, and compares them with their "
        "prediction. Exits with 1 where the machine's speed moved too far in some run."
    )
    add_deployment(parser)
    add = parser.add_argument
    add("--profile", type=Path, required=True, metavar="FILE.toml", help="what `run` wrote")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--matrix", action="store_true", help="all cases")
    which.add_argument(
        "--cases", metavar="NAMES", help="by comma, as patterns: 'vllm-like/1P1D/80%%,*/2U/*'"
    )
    add("--repeats", type=int, default=3, metavar="N", help="runs of each case (3)")
    add("--num-requests", type=int, default=150, metavar="N", help="of each run (150)")
    add("--seed", type=int, default=1, help="of arrivals and lengths (1)")
    add("--keep", type=Path, metavar="DIR", help="keep the runs, and use those that are there")
    add_json(parser, "write the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run, compare and print case by case; 1 where a run is void."""
    require_ranges(args, repeats=(1, 100), num_requests=(20, 100_000))
    calibration = Calibration.load(args.profile)
    cases = chosen(["*"] if args.matrix else args.cases.split(","), calibration.engine)
    console = Console()
    console.print(_duration(cases, args.repeats, args.num_requests))
    reports = []
    with runs_folder(args.keep) as folder, bar("checking", len(cases)) as progress:
        sizes = (args.num_requests, args.repeats, args.seed)
        served = LiveModel(args.model, args.device, calibration.engine, args.num_threads)
        matrix = Matrix(calibration, served, folder, *sizes)
        for report in matrix.run(cases, progress.tries):
            progress.advance()
            _print(console, report)
            reports.append(report)
            write_json(args.json, _json(reports))
    console.print(overall_table(overall(reports)))
    num_void = sum(repeat.is_void for report in reports for repeat in report.repeats)
    if num_void:
        console.print(f"{num_void} runs are void: let the machine rest, measure anew, repeat them")
    return 1 if num_void else 0


def _print(console: Console, report: CaseReport) -> None:
    console.print(case_table(report))
    for line in case_notes(report):
        console.print(f"  {line}")


def _json(reports: Sequence[CaseReport]) -> dict[str, object]:
    cases = []
    for report in reports:
        repeats = [{**asdict(each), "is_void": each.is_void} for each in report.repeats]
        cases.append({**asdict(report), "repeats": repeats})
    return {"cases": cases, "overall": [asdict(each) for each in overall(reports)]}


def _duration(cases: Sequence[HeldOutCase], repeats: int, num_requests: int) -> str:
    num_runs = len(cases) * repeats
    each = num_requests / 150
    seconds = num_runs * (START_SECONDS + _SECONDS_ASKED * each)
    seconds += (num_runs + len(cases)) * _SECONDS_SIMULATED * each
    return f"{num_runs} runs of {len(cases)} cases: about {seconds / 60:.0f} minutes"
