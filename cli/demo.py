"""``headway demo``: a burst and an overload under two presets, side by side."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from bench.demo.load import LEAST_REQUESTS, NUM_WARM_UP, REGIMES, LoadBounds
from cli.options import (
    add_json,
    add_model,
    add_policy_options,
    chosen,
    parse_presets,
    parse_seconds,
    parse_seeds,
    refuse_unknown,
    require_ranges,
)
from headway.errors import invalid, require_between
from services.worker.engines import MOVES_NO_KV

if TYPE_CHECKING:
    from services.local.options import WorkerCounts

# What a cluster consists of is imported once the flags are read (cli/up.py).

TOPOLOGIES = ("best", "unified", "split")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    parser.description = (
        "Starts clusters on this machine under each preset, one after the other. A closed loop "
        "warms them up and measures what they carry, unified and split. Then it offers a burst "
        "(below saturation on average) and an overload in proportion to that: the same requests "
        "at the same instants for every preset of a seed."
    )
    add = parser.add_argument
    add("--presets", default="vllm-like,headway", help="two or more by comma (vllm-like,headway)")
    add("--regime", choices=(*REGIMES, "both"), default="both", help="which load (both)")
    add("--seeds", default="1", metavar="N", help="pairs (1), or seeds: 101,102; verdicts need 2")
    add(
        "--for",
        dest="seconds",
        type=parse_seconds,
        default=30.0,
        metavar="TIME",
        help="the most time in which a regime's requests arrive (30s)",
    )
    add("--num-requests", type=int, default=600, metavar="N", help="the most of a regime (600)")
    add("--max-tokens", type=int, default=0, metavar="N", help="of a chat's output (0: any)")
    add("--warm-up", type=int, default=NUM_WARM_UP, metavar="N", help="requests of its loop (120)")
    add_model(parser)
    add("--prefill", type=int, default=1, metavar="N", help="prefill workers (default 1)")
    add(
        "--decode",
        type=int,
        default=1,
        metavar="N",
        help="decode workers (default 1); with an engine that moves no KV, workers that do both",
    )
    add(
        "--topology",
        choices=TOPOLOGIES,
        default="best",
        help="split: those workers; unified: as many that do both phases; best: each preset "
        "gets the one of the two that carries more (best)",
    )
    add("--device", default="cpu", help="cpu or cuda")
    add("--engine", default="torch", help="what computes: torch, vllm or vllm-native")
    add("--engine-args", default="", metavar="JSON", help="options of an engine other than torch")
    add("--max-running", type=int, default=4, metavar="N", help="of a DP unit in one pass (4)")
    add(
        "--least-pass-time",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that a pass takes at least, for a machine whose speed varies: both presets "
        "then have an engine of one speed (0: as fast as it can)",
    )
    add("--log-dir", type=Path, default=Path("run/demo"), help="the services' logs (run/demo)")
    add("--plots", type=Path, metavar="DIR", help="draw the latencies' distributions")
    add_json(parser, "write figures and verdicts")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run and print; 1 where a request failed."""
    presets = parse_presets(args.presets)
    for name in presets:
        refuse_unknown(name, args)
    require_between("--for", args.seconds, 1, 3600)
    require_ranges(args, num_requests=(LEAST_REQUESTS, 100_000), warm_up=(16, 10_000))
    require_ranges(
        args, max_tokens=(0, 100_000), max_running=(1, 256), prefill=(1, 64), decode=(1, 64)
    )
    require_between("--least-pass-time", args.least_pass_time, 0, 10)
    if args.least_pass_time and args.engine in MOVES_NO_KV:
        limit = f"0 with engine {args.engine}, which plans its own passes"
        raise invalid("--least-pass-time", args.least_pass_time, limit)
    from bench.demo.live import Setting, run_demo
    from services.local.options import PolicyOptions
    from services.local.refusals import refuse_wrong_options

    setting = Setting(
        model=args.model,
        topologies=_topologies(args),
        device=args.device,
        max_running=args.max_running,
        num_warm_up=args.warm_up,
        max_tokens=args.max_tokens,
        regimes=[each for name, each in REGIMES.items() if args.regime in (name, "both")],
        bounds=LoadBounds(args.seconds, args.num_requests),
        log_dir=args.log_dir,
        least_pass_time=args.least_pass_time,
        engine=args.engine,
        engine_args=args.engine_args,
    )
    policies = [PolicyOptions(name, *chosen(args)) for name in presets]
    for each in policies:
        for workers in setting.topologies:
            refuse_wrong_options(setting.options(each, workers), args.log_dir / each.preset)
    return asyncio.run(run_demo(setting, policies, parse_seeds(args.seeds), args.json, args.plots))


def _topologies(args: argparse.Namespace) -> list[WorkerCounts]:
    """Return the workers that a preset may have; where no KV is moved, each does both phases."""
    from services.local.options import WorkerCounts

    if args.engine in MOVES_NO_KV:
        return [WorkerCounts(prefill=0, decode=0, unified=args.decode)]
    unified = WorkerCounts(prefill=0, decode=0, unified=args.prefill + args.decode)
    split = WorkerCounts(args.prefill, args.decode)
    return {"unified": [unified], "split": [split], "best": [unified, split]}[args.topology]
