"""The demo's clusters: started one after the other, replayed against, stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.demo.burst import Burst, make_burst
from bench.demo.table import Values, figures, print_table, values_of
from bench.serve.client import Client, Endpoint
from bench.serve.replay import Outcome, Replay
from services.local import store as local_store
from services.local import up
from services.runtime.config import ServiceConfig

if TYPE_CHECKING:
    from services.local.supervisor import ProcessSpec

_TIMEOUT = 300.0  # seconds, for one answer
_START_PATIENCE = 300.0  # a checkpoint may have to be fetched
_MOST_OPEN = 1024


async def compare(args: argparse.Namespace, presets: Sequence[str]) -> int:
    """Every preset's run, then the table; 1 where a request failed."""
    console = Console()
    model = Path(args.model).name
    burst = make_burst(model, args.num_requests, args.rate, args.seed)
    runs: dict[str, Values] = {}
    num_failed = 0
    for preset in presets:
        console.print(f"{preset}: starting a cluster, logs in {args.log_dir}/{preset}/")
        async with _cluster(args, preset) as url:
            console.print(f"{preset}: {burst.num_requests} requests, a third of them at once")
            if args.warm_up:
                await _replay(url, make_burst(model, args.warm_up, args.rate, args.seed + 1))
            outcomes = await _replay(url, burst)
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


@asynccontextmanager
async def _cluster(args: argparse.Namespace, preset: str) -> AsyncIterator[str]:
    """The URL of a gateway that serves; the whole cluster ends with the context."""
    from services.local.supervisor import Supervisor

    port = local_store.free_port(2)
    specs = _specs(args, preset, port)
    store_port = local_store.free_port()
    with tempfile.TemporaryDirectory(prefix="headway-store-") as folder:
        specs.insert(0, up.store_spec(store_port, folder))
        config = ServiceConfig(
            service_id="supervisor",
            store=local_store.store_url(store_port),
            cluster="demo",
            drain_timeout=5.0,
        )
        log_folder = Path(args.log_dir) / preset
        supervisor = Supervisor(specs, config, log_folder, lambda line: None)
        try:
            async with asyncio.timeout(_START_PATIENCE):
                await supervisor.start()
                await supervisor.serving()
            yield f"http://127.0.0.1:{port}"
        finally:
            await supervisor.stop()


def _specs(args: argparse.Namespace, preset: str, port: int) -> list[ProcessSpec]:
    """What ``headway up`` would start, each worker with the demo's limit."""
    shape = ("--prefill", str(args.prefill), "--decode", str(args.decode))
    model = ("--model", args.model, "--device", args.device)
    same = ("--preset", preset, "--port", str(port), "--drain-timeout", "5")
    asked = up.parse([*same, *shape, *model])
    asked.policy, asked.set = args.policy, args.set
    specs = up.process_specs(asked, len(os.sched_getaffinity(0)))
    limit = ("--max-running", str(args.max_running))
    return [up.with_flags(each, *limit) if each.service == "worker" else each for each in specs]


async def _replay(url: str, burst: Burst) -> list[Outcome]:
    """Both kinds at once, after one request of each that does not count; outcomes by arrival."""
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
