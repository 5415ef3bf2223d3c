"""A bench of one card, step by step: ``python -m bench.gpu``, or ``headway bench gpu``.

Every step ends within its limit and writes its report after each part. What was not measured is
named with the reason (``not_done``), and is null in tables. ``--shape tiny --device cpu`` is a dry
run of the same code. Wheels for a machine without a network: ``python -m bench.card.wheels``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.card.report import CardReport
from bench.card.step import SHAPE_NAMES, STEPS, CardSetting
from headway.errors import invalid, require_between


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    steps = "; ".join(f"{name}: {step.says}" for name, step in STEPS.items())
    parser.description, parser.epilog = __doc__, f"Steps. {steps}."
    add = parser.add_argument
    add("step", nargs="?", choices=STEPS, default="passes", help="which (passes)")
    add("--shape", choices=SHAPE_NAMES, default=SHAPE_NAMES[0], help=f"({SHAPE_NAMES[0]})")
    add("--device", default="cuda", help="cuda, cuda:N or cpu (cuda)")
    add("--minutes", type=float, default=0.0, metavar="N", help="for everything (the step's own)")
    add("--repeats", type=int, default=20, metavar="N", help="of each pass (20)")
    add("--parts", default="", metavar="NAMES", help="which parts of the step, by comma (all)")
    add("--folder", type=Path, metavar="DIR", help="for a model and for logs; default: for now")
    add("--json", type=Path, metavar="FILE", help="where the report is written")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run a step; 1 where a part of it is not done."""
    step = STEPS[args.step]
    require_between("--repeats", args.repeats, 1, 10_000)
    minutes = args.minutes or step.minutes
    require_between("--minutes", minutes, 0.01, 600)
    parts = tuple(filter(None, args.parts.split(","))) or step.parts
    for name in parts:
        if name not in step.parts:
            raise invalid("--parts", name, f"among {', '.join(step.parts)}")
    report = CardReport(args.json, minutes)
    with tempfile.TemporaryDirectory(prefix="headway-card-") as temporary, report.bounded():
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        setting = CardSetting(args.shape, args.device, args.repeats, parts, folder)
        importlib.import_module(step.module).run(report, setting)
    return 1 if report.figures["not_done"] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step of the command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m bench.gpu")
    add_options(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # a peer that was stopped in the middle keeps a thread that would hold it
