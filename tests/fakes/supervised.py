"""A whole cluster under the live supervisor, on virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from typing import Any

from prometheus_client import generate_latest

from proof.vopr.cluster import ShellCluster
from proof.vopr.history import run
from proof.vopr.loop import OWNER, ProcessLife
from proof.vopr.scenario import SeedScenario

Test = Callable[[ShellCluster], Awaitable[None]]


def supervise(test: Test, *roles: str, **scenario: Any) -> None:
    """Run a test in a cluster with workers of these roles; it breaks no promise.

    The cluster has been told to start; the test is one more process of it, for five minutes.
    ``scenario``: what else it is like, by the fields of ``SeedScenario``.
    """

    async def live(cluster: ShellCluster) -> None:
        OWNER.set(ProcessLife(cluster.world.loop, "test"))
        cluster.begin()
        async with asyncio.timeout(300):
            await test(cluster)

    history = SeedScenario(0, num_schedulers=1, roles=roles or ("unified",), **scenario)
    violations = run(history, live=live).violations
    assert not violations, violations


def supervised(*roles: str, **scenario: Any) -> Callable[..., Any]:
    """Have a test run so: its first argument is the cluster (``supervise``)."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def lived(**arguments: Any) -> None:
            supervise(partial(test, **arguments), *roles, **scenario)

        _, *others = inspect.signature(test).parameters.values()
        lived.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return update_wrapper(lived, test)

    return decorate


async def until(holds: Callable[[], object]) -> None:
    """Let virtual time pass."""
    while not holds():
        await asyncio.sleep(0.01)


def serves(cluster: ShellCluster) -> bool:
    """Return whether all that is to serve does."""
    return not cluster.awaited()


def metric(cluster: ShellCluster, name: str, process: str = "s0") -> float:
    """Return the sum of a process's series whose names and labels begin so."""
    runtime = cluster.processes[process].runtime
    assert runtime is not None, "it has started"
    lines = generate_latest(runtime.metrics).decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
