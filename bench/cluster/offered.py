"""Load on a live cluster: plans replayed against it, and what its gateway counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.console import Console

from bench.serve.client import Client, Endpoint
from bench.serve.plan import Plan
from bench.serve.replay import Replay, ReplayedRequest

_TIMEOUT = 300.0  # seconds, for one answer
_MOST_OPEN = 1024
_RESUBMITTED = "headway_gateway_resubmitted_requests"


async def replayed(url: str, *plans: Plan, warms_up: bool = True) -> list[ReplayedRequest]:
    """Send all plans at once and return every request.

    ``warms_up``: with one uncounted request of each plan before.
    """
    client = Client(Endpoint.parse(url), _TIMEOUT)
    stopping = asyncio.Event()
    try:
        for plan in plans if warms_up else ():
            await client.post(plan.path, plan.requests[0].body, lambda data, now: None)
        replays = [Replay(client, plan, most_open=_MOST_OPEN) for plan in plans]
        await asyncio.gather(*(replay.run(stopping) for replay in replays))
    finally:
        client.close()
    return [request for replay in replays for request in replay.outcomes]


def print_failures(console: Console, name: str, requests: Sequence[ReplayedRequest]) -> int:
    """Print how many of a contender's requests failed, and why the first did; return how many."""
    failed = [each for each in requests if each.error_kind]
    if failed:
        said = f"{name}: {len(failed)} requests failed, the first: {failed[0].error}"
        console.print(said, markup=False)
    return len(failed)


async def num_resubmitted(url: str) -> int:
    """Return the attempts beyond the first: what failures made workers compute again."""
    client = Client(Endpoint.parse(url), _TIMEOUT)
    try:
        page = bytes((await client.get("/metrics")).body).decode()
    finally:
        client.close()
    lines = (line for line in page.splitlines() if line.startswith(_RESUBMITTED))
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))
