"""``headway bench engine``: the worker's engine beside others', in one run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.engine.run import OWN_ENGINES, EngineComparison, EnginePlan, model_of
from bench.runner.comparison import compare
from cli.options import add_json, add_model, require_ranges
from results.output import make_table, write_json

if TYPE_CHECKING:
    from bench.engine.where import PassSplit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Every engine is loaded in a process of its own; in each round all of them "
        "run the same prompts, one after the other. Figures are medians over the rounds."
    )
    add = parser.add_argument
    add_model(parser, "a folder, or 0.5b")
    add("--dtype", default="", help="of all engines (the checkpoint's)")
    add("--concurrency", default="1,8,32", metavar="N,…", help="requests at once (1,8,32)")
    add("--prompt", type=int, default=64, metavar="N", help="prompt tokens (64)")
    add("--output", type=int, default=64, metavar="N", help="output tokens (64)")
    add("--rounds", type=int, default=5, metavar="N", help="of every size (5)")
    add("--threads", type=int, default=0, metavar="N", help="of each engine; 0: a core each")
    add("--ours", choices=OWN_ENGINES, default="torch", help="Headway's engine (torch)")
    add("--engines", default="generate,continuous,vllm", help="to compare with")
    add("--peers-dir", type=Path, default=Path("run/peers"), metavar="DIR", help="of vLLM's venv")
    add("--install-peers", action="store_true", help="install what is missing there")
    add("--where", action="store_true", help="instead: where a decode pass's time goes")
    add_json(parser, "write the figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; HeadwayError for a number out of range."""
    require_ranges(args, prompt=(1, 1024), output=(2, 1024), rounds=(1, 1000), threads=(0, 1024))
    plan = EnginePlan.of(args)
    if args.where:
        from bench.engine.where import where  # needs torch

        with model_of(plan, say=print) as model:
            rows = where(model, plan.dtype, plan.num_threads, plan.concurrency)
        _print_where(rows)
        write_json(args.json, [asdict(row) for row in rows])
        return 0
    with model_of(plan, say=print) as model:
        rounds = range(1, args.rounds + 1)
        return asyncio.run(compare(EngineComparison(plan, model), rounds, args.json)).status


def _print_where(splits: Sequence[PassSplit]) -> None:
    rows = []
    for each in splits:
        times = (*each.kinds.values(), each.small, each.python, each.total)
        cells = [f"{spent:.2f}" for spent in times]
        rows.append((each.decoder, str(each.batch), *cells, str(each.num_operators)))
    titles = ("decoder", "requests", *splits[0].kinds, "small ops", "Python", "pass", "ops")
    Console().print(make_table(titles, rows, title="ms of one decode pass"))
