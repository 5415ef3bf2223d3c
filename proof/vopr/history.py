"""A scenario run to its end, checked all the time and once more at rest."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from headway.core.scheduler.core import SchedulerCore
from proof.checker import HistorySummary
from proof.vopr.cluster import SimulatedCluster
from proof.vopr.faults import plan
from proof.vopr.invariants import remembered_requests
from proof.vopr.scenario import Asking, SeedScenario
from proof.vopr.world import BrokenPromise

CALM = 12.0
"""Seconds after the last fault in which every request ends, and every worker serves again."""
REST = 9.0
"""Seconds after the last request in which every core forgets all requests."""
STEP = 0.5


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


def run(scenario: SeedScenario) -> History:
    """Run a scenario; the same one gives the same history."""
    cluster = SimulatedCluster(scenario)
    world = cluster.world
    violations: list[str] = []
    try:
        _live(cluster)
    except BrokenPromise:
        violations = [*map(str, world.broken), *map(str, world.checker.violations)]
    except Exception as error:  # whatever a core raises is a broken promise
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        at = world.kernel.now
        violations = [f"at {at:.6f}: a core raises nothing: {where}: {error!r}"]
        world.happened(violations[0])
    return History(
        scenario,
        world.digest,
        world.checker.summary,
        violations,
        world.sometimes,
        world.num_passes,
        world.kernel.now,
    )


def _live(cluster: SimulatedCluster) -> None:
    """Live through the faults, then the calm, then ask once more, then rest."""
    scenario, world, kernel = cluster.scenario, cluster.world, cluster.world.kernel
    plan(cluster)
    kernel.run(scenario.heals_at)
    _run_until_idle(cluster, scenario.heals_at + CALM, "work goes on once the faults are over")
    for name in sorted(cluster.skews):
        if name not in cluster.processes and cluster.is_wanted(name):
            cluster.start(name)
    rng = Random(scenario.seed)
    for number in range(len(cluster.workers) + 1):
        probe = Asking(f"probe{number}", kernel.now, number, rng.randint(1, 12), 0, 3)
        cluster.submit(probe)
    failed_before = sum(world.checker.summary.ends.values())
    _run_until_idle(cluster, kernel.now + CALM, "the cluster serves once the faults are over")
    ends = sum(world.checker.summary.ends.values()) - failed_before
    world.require(ends > 0, "the cluster serves once the faults are over", "nothing ended")
    kernel.run(kernel.now + REST)
    _check_rest(cluster)
    world.checker.finish(kernel.now)
    if world.checker.violations:
        raise BrokenPromise


def _run_until_idle(cluster: SimulatedCluster, until: float, rule: str) -> None:
    """Let time pass until no client waits; require that this comes in time."""
    world, kernel = cluster.world, cluster.world.kernel
    while world.checker.open_ids and kernel.now < until:
        kernel.run(kernel.now + STEP)
    still = world.checker.open_ids
    world.require(not still, rule, f"{', '.join(still)} did not end by {until:.1f}")


def _check_rest(cluster: SimulatedCluster) -> None:
    """Require that no core remembers a request, and that every block is free."""
    world = cluster.world
    rule = "nothing is remembered at rest"
    for token, owners in world.store.owners.items():
        world.require(len(owners) == 1, "one fencing owner", f"token {token}: {sorted(owners)}")
    cores: list[tuple[str, object]] = [(w.name, w.core) for w in cluster.workers]
    cores += [(g.name, g.core) for g in cluster.gateways]
    leaders: list[tuple[str, SchedulerCore]] = [
        (s.name, s.term.core) for s in cluster.schedulers if s.term is not None
    ]
    world.require(len(leaders) == 1, "one leader at rest", f"{[name for name, _ in leaders]}")
    for name, core in [*cores, *leaders]:
        path = next(remembered_requests(core), None)
        world.require(path is None, rule, f"{name}{path}")
    for worker in cluster.workers:
        world.require(not worker.core.num_held, rule, f"{worker.name} holds requests")
        for unit in worker.core.units:
            num_free = unit.pool.num_free
            detail = f"{worker.name} has {num_free} free blocks of {unit.pool.num_blocks}"
            world.require(num_free == unit.pool.num_blocks, "no block leaks at rest", detail)
