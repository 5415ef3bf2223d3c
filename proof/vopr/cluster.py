"""A cluster of live services on one virtual loop, and the operator who starts and ends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial

from headway.cluster import Role
from headway.errors import HeadwayError
from proof.vopr.clients import HistoryClient
from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.network import KEEPALIVE
from proof.vopr.processes import (
    MOST_WORKERS,
    AutoscalerShell,
    GatewayShell,
    PredictorShell,
    SchedulerShell,
    ShellProcess,
    WorkerShell,
    address_of,
)
from proof.vopr.scenario import Asking, SeedScenario, names
from proof.vopr.watch import Watch
from proof.vopr.world import ShellWorld
from services.autoscaler.actuators import Actuator
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole

_DRAIN_PATIENCE = 12.0
_ORDER_TIMEOUT = 2.0


class ShellCluster:
    """All processes of one history, by the names of their hosts."""

    def __init__(self, scenario: SeedScenario, loop: VirtualLoop) -> None:
        self.scenario = scenario
        self.world = ShellWorld(scenario, loop)
        self.watches: list[Watch] = []
        self.lives: list[ProcessLife] = []
        self.processes: dict[str, ShellProcess] = {}
        self.skews = dict(zip(names(scenario), scenario.skews, strict=False))
        self.preset = scenario.preset
        self._operator = ProcessLife(loop, "operator")
        self._operator.handler = partial(self.world.failed, self._operator)
        self._num_lives: Counter[str] = Counter()
        self._roles = {f"w{n}": Role(role) for n, role in enumerate(scenario.roles)}
        self._next_worker = len(scenario.roles)

    def begin(self) -> None:
        """Start everything, and plan the clients' requests."""
        for name in names(self.scenario):
            self.start(name)
        for asking in self.scenario.requests:
            self.world.loop.at(asking.at, partial(self.submit, asking))

    # --- processes --------------------------------------------------------------------

    def start(self, name: str, *, new_id: bool = False) -> None:
        """Start the next life of a process."""
        world, skew, preset = self.world, self.skews.get(name, 0.0), self.preset
        world.happened(f"start {name}")
        process: ShellProcess
        if name.startswith("g"):
            process = GatewayShell(world, name, skew, preset)
        elif name.startswith("s"):
            process = SchedulerShell(world, name, skew, preset)
        elif name.startswith("p"):
            process = PredictorShell(world, name, skew, preset)
        elif name.startswith("a"):
            process = AutoscalerShell(world, name, skew, preset, Operator(self))
        else:
            self._num_lives[name] += new_id
            life = self._num_lives[name]
            worker_id = f"{name}.{life}" if life else name
            role = self._roles[name].value
            process = WorkerShell(world, name, skew, preset, worker_id, role)
        process.gone = partial(self._gone, process)
        self.lives.append(process.life)
        self.processes[name] = process

    def end(self, name: str, *, silent: bool = False) -> ShellProcess | None:
        """CallEnd a process at once; what it had sent and nobody has read is lost."""
        process = self.processes.pop(name, None)
        if process is not None:
            self.world.happened(f"end {name}")
            self._died(process)
            process.life.end()
            self.world.ports.close(process.life)
            self.world.wires.gone(process.life, silent=silent)
        return process

    def _died(self, process: ShellProcess) -> None:
        if isinstance(process, WorkerShell):
            self.world.deaths.append(self.world.loop.time())

    def _gone(self, process: ShellProcess) -> None:
        """A process has ended by itself, as it was told to."""
        if self.processes.get(process.name) is process:
            if isinstance(process, WorkerShell):
                self.world.hit("a worker has drained")
            self.end(process.name)

    def pause(self, name: str) -> None:
        """Let a process stand still; keepalive gives it up after a while."""
        process = self.processes.get(name)
        if process is None:
            return
        process.life.pause()

        def notice() -> None:
            if process.life.is_paused and process.life.is_alive:
                self._died(process)
                self.world.wires.hangs(process.life)

        self.world.loop.later(KEEPALIVE, notice)

    @property
    def workers(self) -> list[WorkerShell]:
        """The living workers, by name."""
        living = [p for p in self.processes.values() if isinstance(p, WorkerShell)]
        return sorted(living, key=lambda worker: worker.name)

    @property
    def gateways(self) -> list[GatewayShell]:
        """The living gateways, by name."""
        living = [p for p in self.processes.values() if isinstance(p, GatewayShell)]
        return sorted(living, key=lambda gateway: gateway.name)

    @property
    def schedulers(self) -> list[SchedulerShell]:
        """The living schedulers, by name."""
        living = [p for p in self.processes.values() if isinstance(p, SchedulerShell)]
        return sorted(living, key=lambda scheduler: scheduler.name)

    # --- the operator -----------------------------------------------------------------

    def start_worker(self, role: Role) -> None:
        """Start one more worker, unless there are enough."""
        if len(self._roles) < MOST_WORKERS:
            name = f"w{self._next_worker}"
            self._next_worker += 1
            self._roles[name] = role
            self.start(name)

    def ordered(self) -> Counter[str]:
        """Return the ordered workers by role."""
        found = Counter(dict.fromkeys(sorted(role.value for role in self._roles.values()), 0))
        for name, role in self._roles.items():
            process = self.processes.get(name)
            found[role.value] += not (process is not None and process.is_draining)
        return found

    def of_role(self, role: str) -> list[str]:
        """Return the names of workers that serve in a role, the youngest last."""
        return [w.name for w in self.workers if w.role == role and not w.is_draining]

    def set_role(self, name: str, role: Role) -> None:
        """Order a worker to serve in another role."""
        worker = self.processes.get(name)
        if isinstance(worker, WorkerShell) and self._keeps_serving(name, role):
            self.world.loop.start(self._operator, self._order(worker, role))

    async def _order(self, worker: WorkerShell, role: Role) -> None:
        secret = worker.secret_file
        config = ServiceConfig(service_id="op", cluster="proof", cluster_secret_file=secret)
        async with open_channel(address_of(worker.name), config, ServiceRole.WORKER) as channel:
            try:
                await wire.set_role(channel, role, within=_ORDER_TIMEOUT)
            except HeadwayError:
                self.world.hit("a worker does not take its role")
            else:
                if worker.name in self._roles:
                    self._roles[worker.name] = role

    def drain(self, name: str) -> None:
        """Order a worker to go; it is killed if it takes too long."""
        worker = self.processes.get(name)
        if not isinstance(worker, WorkerShell) or worker.is_draining:
            return
        if not self._keeps_serving(name, None):
            return
        del self._roles[name]
        worker.drain()

        def give_up() -> None:
            if self.processes.get(name) is worker:
                self.world.hit("a drain takes too long")
                self.end(name)

        self.world.loop.later(_DRAIN_PATIENCE, give_up)

    def _keeps_serving(self, name: str, role: Role | None) -> bool:
        """Return whether the rest can serve both stages if this worker changes, or goes."""
        roles = {**self._roles, name: role}
        rest = [r for r in roles.values() if r is not None]
        return any(r.prefills for r in rest) and any(r.decodes for r in rest)

    def is_wanted(self, name: str) -> bool:
        """Return whether a process is to run."""
        return name[0] != "w" or name in self._roles

    def submit(self, asking: Asking) -> None:
        """A client asks."""
        HistoryClient(self.world, asking, f"g{asking.gateway % self.scenario.num_gateways}")


class Operator(Actuator):
    """The actuator of an autoscaler whose orders the cluster's operator carries out."""

    name = "process"

    def __init__(self, cluster: ShellCluster) -> None:
        self._cluster = cluster

    async def ordered(self) -> Mapping[str, int]:
        """Return the ordered workers by role."""
        return self._cluster.ordered()

    async def scale(self, role: str, num_instances: int) -> None:
        """Start or drain workers of a role until so many are left."""
        self._cluster.world.hit("the autoscaler scales")
        for name in self._cluster.of_role(role)[max(num_instances, 1) :]:
            self._cluster.drain(name)
        for _ in range(num_instances - self._cluster.ordered()[role]):
            self._cluster.start_worker(Role(role))

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Give workers of a role another one, the youngest first."""
        changed = self._cluster.of_role(source)[::-1][:num_instances]
        for name in changed:
            self._cluster.world.hit("the autoscaler changes a role")
            self._cluster.set_role(name, Role(target))
        return len(changed)


async def end_all(cluster: ShellCluster) -> None:
    """Let every task end, also those of processes that were killed."""
    loop = cluster.world.loop
    loop.is_over = True
    for life in cluster.lives:
        life.bury()
    mine = asyncio.current_task()
    for _ in range(20):
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)
