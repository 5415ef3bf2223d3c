"""``headway bench cpu``: what the path of a token costs under each preset, in CPU time.

A live comparison in one file: flags, what is started, what is offered, what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.demo.load import mix
from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.offered import looped, replayed
from bench.runner.started import LiveTarget, bench_options, cluster_target
from bench.runner.verdict import Figure
from bench.serve.plan import Plan, timed
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
from services.local.options import PolicyOptions, WorkerCounts

_PATIENCE = 300.0
_WARM_UP = 20.0  # seconds in which its requests begin
_NOTICE = 1.0  # µs


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
    add_json(parser, "write every run's figures")
    add_policy_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed."""
    policies = [PolicyOptions(name, *chosen(args)) for name in parse_presets(args.presets)]
    require_ranges(args, num_requests=(4, 100_000), max_running=(1, 256), rate=(0.01, 10_000))
    require_ranges(args, prefill=(0, 64), decode=(0, 64), unified=(0, 64))
    require_between("--least-pass-time", args.least_pass_time, 0, 10)
    comparison = CpuComparison(args, policies)
    return asyncio.run(compare(comparison, parse_seeds(args.seeds), args.json)).status


class CpuComparison(LiveComparison):
    """CPU time a token of all processes, by kind, under each preset.

    ``--least-pass-time`` gives engines one speed: batches are then as large under every preset,
    whatever else the machine does.
    """

    def __init__(self, args: argparse.Namespace, policies: Sequence[PolicyOptions]) -> None:
        super().__init__()
        self._args = args
        self._policies = {each.preset: each for each in policies}
        self._workers = WorkerCounts(args.prefill, args.decode, unified=args.unified)
        self.systems = list(self._policies)
        kinds = [role for role, count in self._workers.by_role().items() if count]
        self.figures = [
            Figure(kind, f"{kind}: µs of CPU a token", _NOTICE)
            for kind in ("gateway", "scheduler", "autoscaler", "predictor", *kinds, "all")
        ]

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Start the cluster of one preset."""
        args = self._args
        pace = ("--least-pass-time", str(args.least_pass_time))
        flags = ("--max-running", str(args.max_running), *pace)
        options = bench_options(args.model, self._policies[system], self._workers, *flags)
        return cluster_target(options, args.log_dir / system)

    def plan(self, seed: int) -> Plan:
        """Plan the requests of a seed: the demo's mix, at the same instants for every preset."""
        args, rng = self._args, random.Random(f"cpu {seed}")
        plan = mix(Path(args.model).name, args.num_requests, rng)
        seconds = args.num_requests / args.rate
        return timed(plan, sorted(rng.random() * seconds for _ in plan.requests))

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Ask for a while, with twice as many in flight as there are places."""
        places = self._args.max_running * (self._workers.decode + self._workers.unified)
        plan = self.plan(-seed)
        warm_up = replace(plan, requests=plan.requests[: 8 * places])
        await looped(target.url, warm_up, 2 * places, _WARM_UP, _PATIENCE)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Serve a seed's requests, and add up the CPU seconds by kind of process."""
        plan, before = self.plan(seed), target.cpu_seconds()
        requests = await replayed(target.url, plan, within=len(plan.requests) + _PATIENCE)
        after = target.cpu_seconds()
        taken = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        num_tokens = sum(each.times.num_output_tokens for each in requests if each.times)
        figures = us_per_token(taken, num_tokens)
        return Measurement(figures, requests, {"cpu_seconds": taken, "num_tokens": num_tokens})


def us_per_token(seconds: Mapping[str, float], num_tokens: int) -> dict[str, float]:
    """Return microseconds a token of every kind of process, and of ``all``."""
    figures: dict[str, Any] = defaultdict(float)
    for process, taken in seconds.items():
        for kind in (re.sub(r"-?\d+$", "", process), "all"):
            figures[kind] += 1e6 * taken / max(1, num_tokens)
    return figures
