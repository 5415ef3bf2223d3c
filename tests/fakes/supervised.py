"""A whole cluster under the live supervisor, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proof.vopr.cluster import ShellCluster
from proof.vopr.history import run
from proof.vopr.loop import OWNER, ProcessLife
from proof.vopr.scenario import SeedScenario

Test = Callable[[ShellCluster], Awaitable[None]]


def supervised(test: Test, *roles: str, standby: int = 0) -> None:
    """Run a test in a cluster with workers of these roles; it breaks no promise.

    The cluster has been told to start; the test is one more process of it, for five minutes.
    """

    async def live(cluster: ShellCluster) -> None:
        OWNER.set(ProcessLife(cluster.world.loop, "test"))
        cluster.begin()
        async with asyncio.timeout(300):
            await test(cluster)

    scenario = SeedScenario(0, num_schedulers=1, roles=roles or ("unified",), standby=standby)
    assert run(scenario, live=live).violations == []


async def until(holds: Callable[[], object]) -> None:
    """Let virtual time pass."""
    while not holds():
        await asyncio.sleep(0.01)


def serves(cluster: ShellCluster) -> bool:
    """Return whether all that is to serve does."""
    return not cluster.awaited()
