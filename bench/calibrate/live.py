"""A local cluster under measurement: started, asked, stopped; workers write their passes down."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bench.calibrate.figures import Seen
from bench.calibrate.load import Row, write_trace
from bench.serve.client import Client, Endpoint
from bench.serve.plan import Options, make_plan
from bench.serve.replay import Replay
from headway.errors import Code, HeadwayError
from services.local import up
from services.local.store import LocalStore, free_port
from services.local.supervisor import Supervisor
from services.runtime.config import ServiceConfig

MOST_OPEN = 1000
TIMEOUT = 300.0


@asynccontextmanager
async def cluster(flags: Sequence[str], records: Path, num_cores: int) -> AsyncIterator[str]:
    """What ``headway up`` with these flags starts; its URL. Records are whole when it has ended."""
    port = free_port(2)
    args = up.parse(["--port", str(port), "--log-level", "warning", *flags])
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
