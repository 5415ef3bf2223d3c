"""The demo's clusters: started one after the other, replayed against, stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.demo.burst import Burst, make_burst
from bench.demo.table import Values, figures, print_table, values_of
from bench.serve.client import Client, Endpoint
from bench.serve.replay import Outcome, Replay
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port

_TIMEOUT = 300.0  # seconds, for one answer
_MOST_OPEN = 1024


async def compare(args: argparse.Namespace, policies: Sequence[PolicyOptions]) -> int:
    """Run every preset, print the table; return 1 where a request failed."""
    console = Console()
    model = Path(args.model).name
    burst = make_burst(model, args.num_requests, args.rate, args.seed)
    runs: dict[str, Values] = {}
    num_failed = 0
    for each in policies:
        preset = each.preset
        console.print(f"{preset}: starting a cluster, logs in {args.log_dir}/{preset}/")
        async with LocalCluster(_options(args, each), Path(args.log_dir) / preset) as cluster:
            console.print(f"{preset}: {burst.num_requests} requests, a third of them at once")
            if args.warm_up:
                warm_up = make_burst(model, args.warm_up, args.rate, args.seed + 1)
                await _replay(cluster.url, warm_up)
            outcomes = await _replay(cluster.url, burst)
        failed = [each for each in outcomes if each.error_kind]
        num_failed += len(failed)
        if failed:
            said = f"{preset}: {len(failed)} requests failed, the first: {failed[0].error}"
            console.print(said, markup=False)
        runs[preset] = values_of(outcomes)
    table = {preset: figures(values) for preset, values in runs.items()}
    title = f"{burst.num_requests} requests, {len(burst.reasoning.requests)} of them reason"
    print_table(console, title, table)
    if args.json is not None:
        args.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    if args.plots is not None:
        _plot(args.plots, runs)
    return 1 if num_failed else 0


def _plot(folder: Path, runs: dict[str, Values]) -> None:
    from bench.plots import latency_cdfs

    latency_cdfs(folder, runs)


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


async def _replay(url: str, burst: Burst) -> list[Outcome]:
    """Send both kinds at once, after one uncounted request of each; return outcomes by arrival."""
    client = Client(Endpoint.parse(url), _TIMEOUT)
    stopping = asyncio.Event()
    plans = (burst.reasoning, burst.chats)
    try:
        for plan in plans:
            await client.post(plan.path, plan.requests[0].body, lambda data, now: None)
        replays = [Replay(client, plan, most_open=_MOST_OPEN) for plan in plans]
        await asyncio.gather(*(replay.run(stopping) for replay in replays))
    finally:
        client.close()
    outcomes = [outcome for replay in replays for outcome in replay.outcomes]
    return sorted(outcomes, key=lambda each: (each.planned.arrival_at, each.planned.task))
