"""A local cluster under measurement: started, asked, stopped; workers write their passes down."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from headway.cli import up
from headway.cli.bench.client import Client, Endpoint
from headway.cli.bench.plan import Options, make_plan
from headway.cli.bench.replay import Replay
from headway.cli.calibration.figures import Seen
from headway.cli.calibration.load import Row, write_trace
from headway.errors import Code, HeadwayError
from services.runtime.config import ServiceConfig
from services.runtime.local_store import LocalStore, free_port
from services.runtime.supervisor import Supervisor

MOST_OPEN = 1000
TIMEOUT = 300.0


@asynccontextmanager
async def cluster(flags: Sequence[str], records: Path, num_cores: int) -> AsyncIterator[str]:
    """What ``headway up`` with these flags starts; its URL. Records are whole when it has ended."""
    port = free_port(2)
    parser = argparse.ArgumentParser()
    up.add_parser(parser.add_subparsers())
    args = parser.parse_args(["up", "--port", str(port), "--log-level", "warning", *flags])
    with ExitStack() as stack:
        store = stack.enter_context(LocalStore())
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        specs = [
            replace(spec, flags=(*spec.flags, "--record-passes", str(records)))
            if spec.service == "worker"
            else spec
            for spec in up.process_specs(args, num_cores)
        ]
        config = ServiceConfig(service_id="supervisor", store=store.url, drain_timeout=10.0)
        supervisor = Supervisor(specs, config, logs, lambda line: None)
        try:
            await supervisor.start()
            await supervisor.serving()
            yield f"http://127.0.0.1:{port}"
        finally:
            await supervisor.stop()


async def ask(url: str, model: str, rows: Sequence[Row], seed: int) -> list[Seen]:
    """Replay the requests; HeadwayError where one fails: nothing would be comparable."""
    client = Client(Endpoint.parse(url, ""), TIMEOUT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "requests.jsonl"
            write_trace(trace, rows)
            options = Options(
                model=model, trace=trace, prompts="random-tokens", endpoint="completions", seed=seed
            )
            replay = Replay(client, make_plan(options), most_open=MOST_OPEN)
            await replay.run(asyncio.Event())
    finally:
        client.close()
    failed = [outcome.error for outcome in replay.outcomes if outcome.times is None]
    if failed:
        message = f"{len(failed)} of {len(rows)} requests failed: {failed[0]}"
        raise HeadwayError(Code.UNAVAILABLE, message)
    return [
        Seen(times.ttft, times.tpot, times.ttlt)
        for outcome in replay.outcomes
        if (times := outcome.times) is not None
    ]
