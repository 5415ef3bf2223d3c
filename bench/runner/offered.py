"""Load on a live cluster: plans replayed against it, and what its processes counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rich.console import Console

from bench.serve.client import Client, Endpoint
from bench.serve.plan import Plan, Planned
from bench.serve.replay import Replay, ReplayedRequest

_TIMEOUT = 300.0  # seconds, for one answer
_MOST_OPEN = 4096
_RESUBMITTED = "headway_gateway_resubmitted_requests"


async def replayed(
    url: str,
    plan: Plan,
    *,
    within: float | None = None,
    until_ended: Callable[[Planned], bool] | None = None,
) -> list[ReplayedRequest]:
    """Send a plan and return every request; those that last longer than ``within`` s fail.

    ``until_ended``: the requests that are waited for; what is left of others then is cut off.
    """
    client, stopping = Client(Endpoint.parse(url), _TIMEOUT), asyncio.Event()
    waits_for = until_ended or (lambda planned: True)
    num_left = sum(map(waits_for, plan.requests))

    def ended(outcome: ReplayedRequest) -> None:
        nonlocal num_left
        num_left -= waits_for(outcome.planned)
        if not num_left:
            stopping.set()

    replay = Replay(client, plan, most_open=_MOST_OPEN, on_end=ended)
    alarm = None
    if within is not None:
        alarm = asyncio.get_running_loop().call_later(within, stopping.set)
    try:
        await replay.run(stopping)
    finally:
        client.close()
        if alarm is not None:
            alarm.cancel()
    return replay.outcomes


async def looped(
    url: str,
    plan: Plan,
    in_flight: int,
    seconds: float,
    patience: float,
    stopping: asyncio.Event | None = None,
) -> list[ReplayedRequest]:
    """Send a plan's requests ``in_flight`` at a time, and return those that were sent.

    None begins after ``seconds``, or once it is stopping; one that takes longer than ``patience``
    seconds fails.
    """
    client = Client(Endpoint.parse(url), patience)
    replay = Replay(client, plan, most_open=_MOST_OPEN)
    try:
        await replay.run_closed(in_flight, seconds, stopping or asyncio.Event())
    finally:
        client.close()
    return replay.outcomes


def print_failures(console: Console, name: str, requests: Sequence[ReplayedRequest]) -> None:
    """Print how many requests of a run failed, and why the first did."""
    failed = [each for each in requests if each.error_kind]
    if failed:
        why = f"{failed[0].error_kind}: {failed[0].error}"
        said = f"{name}: {len(failed)} requests failed, the first: {why}"
        console.print(said, markup=False)


async def num_resubmitted(url: str) -> int:
    """Return the attempts beyond the first: what failures made workers compute again."""
    return int(await counted(url, _RESUBMITTED))


async def counted(url: str, name: str) -> float:
    """Return a process's counter, summed over its labels."""
    client = Client(Endpoint.parse(url), _TIMEOUT)
    try:
        page = bytes((await client.get("/metrics")).body).decode()
    finally:
        client.close()
    lines = (line for line in page.splitlines() if line.startswith(name))
    return sum(float(line.rpartition(" ")[2]) for line in lines)
