"""The demo's clusters: started one after the other, replayed against, stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import plots
from bench.cluster.offered import print_failures, replayed
from bench.demo.burst import make_burst
from bench.demo.table import Values, figures, print_table, titled, values_of
from bench.output import write_json
from bench.serve.classes import Alone, by_class
from bench.serve.replay import ReplayedRequest
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port


async def compare(args: argparse.Namespace, policies: Sequence[PolicyOptions]) -> int:
    """Run every preset, print the table; return 1 where a request failed."""
    console = Console()
    model = Path(args.model).name
    burst = make_burst(model, args.num_requests, args.rate, args.seed)
    runs: dict[str, Values] = {}
    replays: dict[str, list[ReplayedRequest]] = {}
    num_failed = 0
    for each in policies:
        preset = each.preset
        console.print(f"{preset}: starting a cluster, logs in {args.log_dir}/{preset}/")
        async with LocalCluster(_options(args, each), Path(args.log_dir) / preset) as cluster:
            console.print(f"{preset}: {burst.num_requests} requests, a third of them at once")
            if args.warm_up:
                warm_up = make_burst(model, args.warm_up, args.rate, args.seed + 1)
                await replayed(cluster.url, warm_up.reasoning, warm_up.chats)
            requests = await replayed(cluster.url, burst.reasoning, burst.chats)
        requests.sort(key=lambda one: (one.planned.arrival_at, one.planned.task))
        num_failed += print_failures(console, preset, requests)
        runs[preset], replays[preset] = values_of(requests), requests
    alone = Alone.of(each for requests in replays.values() for each in requests)
    table = {
        preset: figures(values) | titled(by_class(replays[preset], alone))
        for preset, values in runs.items()
    }
    title = f"{burst.num_requests} requests, {len(burst.reasoning.requests)} of them reason"
    print_table(console, title, table)
    write_json(args.json, table)
    if args.plots is not None:
        plots.latency_cdfs(args.plots, runs)
    return 1 if num_failed else 0


def _options(args: argparse.Namespace, policies: PolicyOptions) -> ClusterOptions:
    """Return one preset's cluster, each worker with the demo's limit."""
    return ClusterOptions(
        model=args.model,
        policies=policies,
        workers=WorkerCounts(args.prefill, args.decode),
        device=args.device,
        port=free_port(2),
        drain_timeout=5.0,
        service_flags={"worker": ("--max-running", str(args.max_running))},
    )
