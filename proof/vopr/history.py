"""A scenario run to its end on the live shells, checked all the time and once more at rest."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any

from headway.core.scheduler.instance import UnitState
from proof.checker import HistorySummary
from proof.vopr.cluster import ShellCluster, end_all
from proof.vopr.faults import plan
from proof.vopr.invariants import remembered_requests
from proof.vopr.loop import TimeStandsStill, VirtualLoop
from proof.vopr.processes import files_read_once
from proof.vopr.scenario import Asking, SeedScenario
from proof.vopr.watch import watched
from proof.vopr.world import BrokenPromise, ShellWorld
from services.gateway.past_form import KEPT

CALM = 12.0
"""Seconds after the last fault in which every worker serves again, and every request ends.

Those that fill a worker alone may end one after the other.
"""
REST = 9.0
"""Seconds after the last request in which every core forgets all requests."""
STEP = 0.5
Live = Callable[[ShellCluster], Awaitable[None]]


@dataclass(slots=True)
class History:
    """The outcome of one scenario."""

    scenario: SeedScenario
    digest: str
    summary: HistorySummary
    violations: list[str] = field(default_factory=list)
    sometimes: Counter[str] = field(default_factory=Counter)
    num_passes: int = 0
    virtual_seconds: float = 0.0

    @property
    def rules(self) -> set[str]:
        """The names of the broken promises, without places and times."""
        return {each.split(": ")[1] for each in self.violations}


def run(scenario: SeedScenario, log: list[str] | None = None, live: Live | None = None) -> History:
    """Run a scenario; the same one gives the same history. ``log`` takes all that happens.

    ``live``: what to do with the cluster instead of what the scenario plans.
    """
    # What frees an unreachable generator runs its last lines: not at a moment of the collector's.
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # the collection at the end looks at this history's objects alone
    try:
        return _on_its_loop(scenario, log, live or _live)
    finally:
        gc.collect()  # nothing names the loop any more, by which a history holds together
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _on_its_loop(scenario: SeedScenario, log: list[str] | None, live: Live) -> History:
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_history(scenario, loop, log, live))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


async def _history(
    scenario: SeedScenario, loop: VirtualLoop, log: list[str] | None, live: Live
) -> History:
    cluster = ShellCluster(scenario, loop)
    world = cluster.world
    world.log = log
    with world.ports.instead_of_grpc(), files_read_once(), watched(world, cluster.watches):
        try:
            await live(cluster)
        except BrokenPromise:
            pass
        except (AssertionError, TimeStandsStill) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            world.require(False, "time goes on", f"{place.filename}:{place.lineno}: {error!r}")
        violations = [*map(str, world.broken), *map(str, world.checker.violations)]
        history = History(
            scenario,
            world.digest,
            world.checker.summary,
            violations,
            world.sometimes,
            world.num_passes,
            loop.time(),
        )
        await end_all(cluster)
    return history


async def _live(cluster: ShellCluster) -> None:
    """Live through the faults, then the calm, then ask once more, then rest."""
    scenario, world, loop = cluster.scenario, cluster.world, cluster.world.loop
    cluster.begin()
    plan(cluster)
    await _until(world, scenario.heals_at)
    patience = max(CALM, scenario.seconds_in_turn)
    await _until_idle(world, scenario.heals_at + patience, "work goes on once the faults are over")
    await _until_settled(cluster)
    rng = Random(scenario.seed)
    for number in range(len(cluster.workers) + 1):
        probe = Asking(f"probe{number}", loop.time(), number, rng.randint(1, 12), 0, 3)
        tenants = cluster.scenario.tenants
        cluster.submit(replace(probe, tenant=tenants[-1]) if tenants else probe)
    await _until_idle(world, loop.time() + CALM, "the cluster serves once the faults are over")
    await _until(world, loop.time() + REST)
    await _until_settled(cluster)
    _check_rest(cluster)
    world.checker.finish(loop.time())
    if world.checker.violations or world.broken:
        raise BrokenPromise


async def _until(world: ShellWorld, instant: float) -> None:
    """Let time pass, or end the history because a promise is broken."""
    left = max(0.0, instant - world.loop.time())
    await asyncio.wait([world.fails], timeout=left)
    if world.fails.done():
        raise BrokenPromise


async def _until_idle(world: ShellWorld, until: float, rule: str) -> None:
    """Let time pass until no client waits; require that this comes in time."""
    await _until(world, world.loop.time() + STEP)
    while world.checker.open_ids and world.loop.time() < until:
        await _until(world, world.loop.time() + STEP)
    still = world.checker.open_ids
    world.require(not still, rule, f"{', '.join(still)} did not end by {until:.1f}")


async def _until_settled(cluster: ShellCluster) -> None:
    """Let time pass until everything serves that is to; require that this comes in time."""
    world, until = cluster.world, cluster.world.loop.time() + CALM
    while (still := cluster.awaited()) and world.loop.time() < until:
        await _until(world, world.loop.time() + STEP)
    world.require(not still, "the supervisor brings everything back", ", ".join(still))


def _check_rest(cluster: ShellCluster) -> None:
    """Require that no core remembers a request, that every block is free, and that it is known."""
    world = cluster.world
    rule = "nothing is remembered at rest"
    for token, owners in world.store.owners.items():
        world.require(len(owners) == 1, "one fencing owner", f"token {token}: {sorted(owners)}")
    if not any(world.sometimes[f"fault: {kind}"] for kind in ("STORE_STALE", "STORE_GARBAGE")):
        journal = list(world.store.journal())  # else no leader knows all of its records
        world.require(not journal, "the journal is empty at rest", f"{journal}")
    _check_past(cluster)
    cores: list[tuple[str, Any]] = [(w.name, w.core) for w in cluster.workers]
    cores += [(g.name, g.core) for g in cluster.gateways]
    leaders = [(s.name, s.core) for s in cluster.schedulers if s.core is not None]
    world.require(len(leaders) == 1, "one leader at rest", f"{[name for name, _ in leaders]}")
    for name, core in [*cores, *leaders]:
        path = next(remembered_requests(core), None)
        world.require(path is None, rule, f"{name}{path}")
    _, leader = leaders[0]
    infos = {w.core.info.worker_id: w.core.info for w in cluster.workers if w.core is not None}
    for row in leader.matrix():
        info = infos.get(row.unit.worker_id)
        if info is None and cluster.autoscales:
            continue  # it may have been told to go a moment ago
        is_so = info and row == UnitState(row.unit, info.chunk_tokens, 0, 0, info.num_blocks)
        world.require(bool(is_so), "the leader believes nothing that is not so", f"{row}")
    for worker in cluster.workers:
        process = cluster.supervised(worker.name)
        if process is None or process.spec.membership or process.is_awaited:
            continue  # the autoscaler may change a pool at any moment
        world.require(worker.core is not None, "every worker serves", worker.name)
        if worker.core is None:
            continue
        detail = f"{worker.name} serves as {worker.role}, ordered was {process.spec.role}"
        world.require(worker.role == process.spec.role, "the supervisor knows the roles", detail)
        world.require(not worker.core.num_held, rule, f"{worker.name} holds requests")
        for unit in worker.core.units:
            num_free = unit.pool.num_free
            detail = f"{worker.name} has {num_free} free blocks of {unit.pool.num_blocks}"
            world.require(num_free == unit.pool.num_blocks, "no block leaks at rest", detail)


def _check_past(cluster: ShellCluster) -> None:
    """Require that the store has all that gateways know to have ended, each of them once."""
    world, rule = cluster.world, "a gateway's past is kept"
    if not cluster.scenario.past_interval or world.store.damaged_at > -inf:
        return
    for gateway in cluster.gateways:
        minutes = map(KEPT.validate_json, world.store.past(gateway.name))
        kept = {each.request_id for minute in minutes for each in minute["ended"]}
        known = [each.request_id for each in gateway.recent.last_minutes(-inf)]
        twice = [name for name, number in Counter(known).items() if number > 1]
        world.require(not twice, rule, f"{gateway.name} has twice: {twice}")
        lost = [name for name in known if name not in kept]
        world.require(not lost, rule, f"{gateway.name} has not kept: {lost}")
