"""``headway bench cpu``: what the path of a token costs under each preset, in CPU time."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from bench.demo.compare import order_of
from bench.demo.cpu import CpuRun, CpuSetting, run_once
from cli.options import (
    add_json,
    add_model,
    add_policy_options,
    chosen,
    parse_presets,
    parse_seeds,
    require_ranges,
)
from headway.errors import require_between
from results.output import make_table, write_json
from services.local.options import PolicyOptions, WorkerCounts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts a cluster under each preset, one after the other, offers both the same requests "
        "at the same instants, and adds up the CPU seconds of all processes. CPU time hardly "
        "depends on what else the machine does; every second pair runs in reverse order."
    )
    add = parser.add_argument
    add("--presets", default="vllm-like,headway", help="two or more by comma (vllm-like,headway)")
    add("--seeds", default="3", metavar="N", help="pairs (3), or seeds: 101,102")
    add_model(parser)
    add("--prefill", type=int, default=1, metavar="N", help="prefill workers (1)")
    add("--decode", type=int, default=1, metavar="N", help="decode workers (1)")
    add("--unified", type=int, default=0, metavar="N", help="workers that do both (0)")
    add("--max-running", type=int, default=4, metavar="N", help="of a DP unit in one pass (4)")
    add("--rate", type=float, default=2.0, metavar="N", help="requests/s (2)")
    add("--num-requests", type=int, default=80, metavar="N", help="of a run (80)")
    add(
        "--least-pass-time",
        type=float,
        default=0.02,
        metavar="S",
        help="seconds that a pass takes at least, so that batches are alike (0.02)",
    )
    add("--log-dir", type=Path, default=Path("run/cpu"), help="the services' logs (run/cpu)")
    add_json(parser, "write every run's seconds by process")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    presets = parse_presets(args.presets)
    require_ranges(args, num_requests=(4, 100_000), max_running=(1, 256), rate=(0.01, 10_000))
    require_ranges(args, prefill=(0, 64), decode=(0, 64), unified=(0, 64))
    require_between("--least-pass-time", args.least_pass_time, 0, 10)
    setting = CpuSetting(
        args.model,
        WorkerCounts(args.prefill, args.decode, unified=args.unified),
        args.max_running,
        args.rate,
        args.num_requests,
        args.least_pass_time,
        args.log_dir,
    )
    policies = [PolicyOptions(name, *chosen(args)) for name in presets]
    runs = asyncio.run(_measure(setting, policies, parse_seeds(args.seeds)))
    _print(presets, runs)
    write_json(args.json, [asdict(each) for each in runs])
    return 0


async def _measure(
    setting: CpuSetting, policies: Sequence[PolicyOptions], seeds: Sequence[int]
) -> list[CpuRun]:
    runs: list[CpuRun] = []
    for place, seed in enumerate(seeds):
        for each in order_of(policies, place):
            runs.append(await run_once(setting, each, seed))
            newest = runs[-1]
            print(f"seed {seed}, {each.preset}: {newest.ms_per_token:.3f} ms a token", flush=True)
    return runs


def _print(presets: Sequence[str], runs: Sequence[CpuRun]) -> None:
    """Print CPU time a token by kind of process, and the change of the whole pair by pair."""
    by_preset = {name: [each for each in runs if each.preset == name] for name in presets}
    kinds = sorted({_kind(name) for each in runs for name in each.seconds})
    rows = [
        (kind, *(f"{fmean([_us(each, kind) for each in by_preset[name]]):.0f}" for name in presets))
        for kind in kinds
    ]
    total = [1e3 * fmean(each.ms_per_token for each in by_preset[name]) for name in presets]
    rows.append(("all", *(f"{value:.0f}" for value in total)))
    console = Console()
    console.print(make_table(("µs of CPU a token", *presets), rows))
    firsts = {each.seed: each.ms_per_token for each in by_preset[presets[0]]}
    for name in presets[1:]:
        changes = [each.ms_per_token / firsts[each.seed] - 1 for each in by_preset[name]]
        console.print(
            f"{name} against {presets[0]}: median {median(changes):+.1%} "
            f"({min(changes):+.1%} to {max(changes):+.1%}) in {len(changes)} pairs"
        )


def _kind(process: str) -> str:
    return re.sub(r"-?\d+$", "", process)


def _us(run: CpuRun, kind: str) -> float:
    seconds = sum(value for name, value in run.seconds.items() if _kind(name) == kind)
    return 1e6 * seconds / run.num_tokens
