"""``headway calibrate``: how well the simulator predicts this machine."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cli.options import add_json, add_model, require_ranges
from headway.cost.profile import load_profile
from headway.errors import invalid
from planning.calibrate.calibration import Calibration
from planning.calibrate.cases import HeldOutCase, chosen
from planning.calibrate.check import CaseReport, overall
from planning.calibrate.live import TORCH, LiveEngine, LiveModel
from planning.calibrate.matrix import START_SECONDS, Matrix, learn
from planning.calibrate.report import calibration_lines, case_notes, case_table, overall_table
from results.output import refuse_unwritable, write_json
from results.progress import bar
from services.worker.engines import find_engine

_SHOW_NO_PASSES = ("openai",)
_SECONDS_ASKED = 20.0
"""About what 150 requests take; the rates are not known beforehand."""
_SECONDS_SIMULATED = 8.0
"""About what predicting 150 requests takes once, of one core."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    actions = parser.add_subparsers(dest="calibrate", required=True, metavar="ACTION")
    fit = actions.add_parser("fit", help="measure this machine: a profile, hops and its pace")
    fit.description = (
        "Starts local clusters. Requests that are alone show what every hop costs, a load spread "
        "over rates and mixes what passes cost, and one on several workers what these take from "
        "each other. Nothing else should run meanwhile."
    )
    add_model(fit)
    add = fit.add_argument
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--engine", default=TORCH.name, help="what computes: torch, vllm or vllm-native (torch)")
    add("--engine-args", default="", metavar="JSON", help="options of an engine other than torch")
    add("--out", type=Path, required=True, metavar="FILE.toml", help="profile; two more beside it")
    add("--profile", default="", metavar="FILE", help="keep its pass times and fit none")
    add("--seed", type=int, default=0, help="of arrivals and lengths (0)")
    add("--keep", type=Path, metavar="DIR", help="keep the runs, and use those that are there")
    fit.set_defaults(run=run_fit)
    check = actions.add_parser("check", help="predict other loads, ask them live, and compare")
    check.description = (
        "Asks live clusters loads that nothing was fitted to, and compares them with their "
        "prediction. Exits with 1 where the machine's speed moved too far in some run."
    )
    add_model(check)
    add = check.add_argument
    add("--profile", type=Path, required=True, metavar="FILE.toml", help="what `fit` wrote")
    add("--device", default="cpu", help="as for `fit` (cpu)")
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("--matrix", action="store_true", help="all cases")
    which.add_argument(
        "--cases", metavar="NAMES", help="by comma, as patterns: 'vllm-like/1P1D/80%%,*/2U/*'"
    )
    add("--repeats", type=int, default=3, metavar="N", help="runs of each case (3)")
    add("--num-requests", type=int, default=150, metavar="N", help="of each run (150)")
    add("--seed", type=int, default=1, help="of arrivals and lengths (1)")
    add("--keep", type=Path, metavar="DIR", help="keep the runs, and use those that are there")
    add_json(check, "write the figures")
    check.set_defaults(run=run_check)


def run_fit(args: argparse.Namespace) -> int:
    """Measure and write; HeadwayError for what cannot be run."""
    refuse_unwritable(args.out)
    if args.engine in _SHOW_NO_PASSES:
        limit = "an engine that shows its passes: torch, vllm or vllm-native"
        raise invalid("--engine", args.engine, limit)
    find_engine(args.engine)
    given = load_profile(args.profile) if args.profile else None
    served = LiveModel(args.model, args.device, LiveEngine(args.engine, args.engine_args))
    with _folder(args.keep) as folder, bar("calibrating") as progress:
        learnt = learn(served, folder, args.seed, given, progress.tries)
    learnt.calibration.save(args.out)
    print("\n".join(calibration_lines(learnt.calibration)))
    levels = ", ".join(f"{each:.2f}" for each in learnt.levels)
    print(f"passes of the loads, alone and side by side, took {levels} times what was fitted")
    if learnt.has_moved:
        print("the machine was not as fast for all loads: fit again when nothing else runs")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Run, compare and print case by case; 1 where a run is void."""
    require_ranges(args, repeats=(1, 100), num_requests=(20, 100_000))
    calibration = Calibration.load(args.profile)
    cases = chosen(["*"] if args.matrix else args.cases.split(","), calibration.engine)
    console = Console()
    console.print(_duration(cases, args.repeats, args.num_requests))
    reports = []
    with _folder(args.keep) as folder, bar("checking", len(cases)) as progress:
        sizes = (args.num_requests, args.repeats, args.seed)
        served = LiveModel(args.model, args.device, calibration.engine)
        matrix = Matrix(calibration, served, folder, *sizes)
        for report in matrix.run(cases, progress.tries):
            progress.advance()
            _print(console, report)
            reports.append(report)
            write_json(args.json, _json(reports))
    console.print(overall_table(overall(reports)))
    num_void = sum(repeat.is_void for report in reports for repeat in report.repeats)
    if num_void:
        console.print(f"{num_void} runs are void: let the machine rest, fit anew, and repeat them")
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


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Yield a folder for runs: the one that is to be kept, or one for now."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="headway-calibrate-") as folder:
        yield Path(folder)
