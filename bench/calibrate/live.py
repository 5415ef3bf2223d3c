"""A live cluster as its clients see it: requests replayed against it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.calibrate.figures import Seen
from bench.calibrate.load import write_trace
from bench.serve.client import Client, Endpoint
from bench.serve.plan import Options, make_plan
from bench.serve.replay import Replay
from headway.errors import Code, HeadwayError
from headway.workload.traces import TraceRow

MOST_OPEN = 1000
TIMEOUT = 300.0


async def ask(url: str, model: str, rows: Sequence[TraceRow], seed: int) -> list[Seen]:
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
