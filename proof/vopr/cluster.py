"""A cluster of live services on one virtual loop, its live supervisor, and their operator."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

from headway.cluster import Role
from headway.presets import find_preset
from proof.vopr.clients import HistoryClient
from proof.vopr.hosts import VirtualHost, VirtualHosts
from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.network import KEEPALIVE
from proof.vopr.processes import (
    DRAIN_TIMEOUT,
    MOST_WORKERS,
    PROFILE,
    SHELLS,
    GatewayShell,
    SchedulerShell,
    ShellProcess,
    WorkerShell,
    config_of,
    secret_file,
)
from proof.vopr.scenario import SUPERVISOR, Asking, SeedScenario, names
from proof.vopr.watch import Watch
from proof.vopr.world import ShellWorld
from services.local.options import PolicyOptions
from services.local.process_spec import ProcessSpec
from services.local.standby_workers import StandbyWorkers
from services.local.supervised import SupervisedProcess
from services.local.supervisor import Supervisor
from services.local.worker_scaler import WorkerScaler
from services.runtime.config import ServiceConfig

T = TypeVar("T")
_SAID = {
    "restarting": "a process is restarted",
    "given up": "a process is given up",
    "did not stop in time": "a drain takes too long",
    "stood by": "a spare takes over",
}
"""States by the supervisor's words for them."""


class ShellCluster:
    """All processes of one history, by the names of their hosts."""

    def __init__(self, scenario: SeedScenario, loop: VirtualLoop) -> None:
        self.scenario = scenario
        self.world = world = ShellWorld(scenario, loop)
        self.watches: list[Watch] = []
        self.lives: list[ProcessLife] = []
        self.processes: dict[str, ShellProcess] = {}
        self.skews = dict(zip(names(scenario), scenario.skews, strict=False))
        self.preset = scenario.preset
        world.wires.own[SUPERVISOR] = Random(f"{SUPERVISOR} {scenario.seed}")
        self._life = ProcessLife(loop, SUPERVISOR)
        self._life.handler = partial(world.failed, self._life)
        self.hosts = VirtualHosts(scenario, world, self.start)
        self._num_lives: Counter[str] = Counter()
        self.roles, self.autoscales = _scaled(scenario)
        secret = secret_file()
        self.config = config = config_of(
            ServiceConfig,
            service_id=SUPERVISOR,
            cluster="proof",
            drain_timeout=DRAIN_TIMEOUT,
            cluster_secret_file=secret,
        )
        specs = [self._spec(name) for name in names(scenario)]
        self.supervisor = Supervisor(specs, config, secret.parent, self._hear, self.hosts)
        standby = StandbyWorkers(self.supervisor, config, scenario.standby, _standby_spec)
        self.scaler = WorkerScaler(self.supervisor, config, self.roles, worker_spec, standby)

    def begin(self) -> None:
        """Start everything, and plan the clients' requests."""
        self.order(self._supervise())
        for asking in self.scenario.requests:
            self.world.loop.at(asking.at, partial(self.submit, asking))

    async def _supervise(self) -> None:
        await self.supervisor.start()
        await self.scaler.start()

    def order(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let the supervisor's process do something."""
        return self.world.loop.start(self._life, work)

    def _hear(self, line: str) -> None:
        """Count what the supervisor says."""
        for words, state in _SAID.items():
            if words in line:
                self.world.hit(state)

    # --- processes --------------------------------------------------------------------

    def _spec(self, name: str) -> ProcessSpec:
        service = next(each for each in SHELLS if each[0] == name[0])
        if service == "worker":
            return worker_spec(self.scenario.roles[int(name[1:])], name)
        flags = ("--actuator", "process" if self.autoscales else "none")
        return ProcessSpec(service, name, flags if service == "autoscaler" else ())

    def start(self, name: str, spec: ProcessSpec) -> ShellProcess:
        """Start the next life of a host's process."""
        self.world.happened(f"start {name}")
        skew = self.skews.get(name, 0.0)
        process = SHELLS[spec.service](self.world, name, spec, skew, self.preset)
        process.gone = partial(self._gone, process)
        self.lives.append(process.life)
        self.processes[name] = process
        return process

    def end(self, name: str, *, silent: bool = False) -> ShellProcess | None:
        """CallEnd a process at once; what it had sent and nobody has read is lost."""
        process = self.processes.pop(name, None)
        if process is not None:
            self.world.happened(f"end {name}")
            self._died(process)
            if silent:
                self.world.silent_at[name] = self.world.loop.time()
            process.life.end()
            process.ended(-9)
            self.world.ports.close(process.life)
            self.world.wires.gone(process.life, silent=silent)
        return process

    def _died(self, process: ShellProcess) -> None:
        if isinstance(process, WorkerShell):
            self.world.deaths.append(self.world.loop.time())

    def _gone(self, process: ShellProcess, status: int) -> None:
        """A process has ended by itself, as it was told to, or by a signal."""
        if self.processes.get(process.name) is process:
            if isinstance(process, WorkerShell) and not status:
                self.world.hit("a worker has drained")
            process.ended(status)
            self.end(process.name)

    def pause(self, name: str) -> None:
        """Let a process stand still; keepalive gives it up after a while."""
        process = self.processes.get(name)
        if process is None:
            return
        process.life.pause()
        paused_at = self.world.loop.time()

        def notice() -> None:
            if process.life.is_paused and process.life.is_alive:
                self._died(process)
                self.world.silent_at[name] = paused_at
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

    def supervised(self, name: str) -> SupervisedProcess | None:
        """Return the process that a host is to run; None without one, or if it is told to go."""
        for process in self.supervisor.processes:
            if self.hosts.name_of(process.spec.service_id) == name:
                return None if process in self.scaler.draining else process
        return None

    def awaited(self) -> list[str]:
        """Return the processes that are to serve and do not.

        Who is given up has failed as often as it takes.
        """
        missing = []
        for process in self.supervisor.processes:
            name = process.spec.service_id
            is_excused = process.is_given_up and self.hosts.failed_starts[name] > 1
            if process not in self.scaler.draining and not is_excused:
                missing += [name] * (process.is_awaited or process.is_given_up)
        return missing

    def _pools(self, *, have_served: bool = False) -> Counter[str]:
        """Return the workers that are to serve, by role.

        ``have_served``: those alone that have begun to, in a role that they keep.
        """
        processes = [p for p in self.supervisor.processes if p not in self.scaler.draining]
        if have_served:
            processes = [p for p in processes if not (p.is_awaited or p.is_given_up)]
            processes = [p for p in processes if p not in self.scaler.changing]
        return Counter(p.spec.role for p in processes if p.spec.role)

    def start_worker(self, role: Role, host: VirtualHost | None = None) -> None:
        """Order one more worker, unless there are enough; ``host``: what its own is like."""
        if role.value in self.roles and self._pools().total() < MOST_WORKERS:
            self.hosts.of_next_worker = host or VirtualHost()
            self.order(self._scale(role.value, 1))

    async def _scale(self, role: str, more: int) -> None:
        self.scaler.scale(role, self._pools()[role] + more)

    def set_role(self, name: str, role: Role) -> None:
        """Order a worker of this one's role to serve in another role."""
        process = self.supervised(name)
        if process is None or not {process.spec.role, role.value} <= set(self.roles):
            return
        if self._keeps_serving(process.spec.role, role):
            self.order(self._change(process.spec.role, role.value))

    async def _change(self, source: str, target: str) -> None:
        if not await self.scaler.change_role(source, target, 1):
            self.world.hit("a worker does not take its role")

    def drain(self, name: str) -> None:
        """Order one worker of this one's role to go."""
        process = self.supervised(name)
        if process is None or process.spec.role not in self.roles:
            return
        if self._keeps_serving(process.spec.role, None):
            self.order(self._scale(process.spec.role, -1))

    def _keeps_serving(self, source: str, target: Role | None) -> bool:
        """Return whether both stages are served if a worker of a role changes, or goes.

        One that has not served yet may be given up.
        """
        rest = (
            self._pools(have_served=True)
            - Counter([source])
            + Counter([target.value] if target else [])
        )
        roles = [Role(role) for role in rest]
        return any(r.prefills for r in roles) and any(r.decodes for r in roles)

    def replace_worker(self, name: str) -> None:
        """Order another worker under a new id in place of one that has ended."""
        process = self.supervised(name)
        if process is not None:
            self._num_lives[name] += 1
            new_id = f"{name}.{self._num_lives[name]}"
            self.hosts.names[new_id] = name
            self.order(self._replace(process, replace(process.spec, service_id=new_id)))

    async def _replace(self, process: SupervisedProcess, spec: ProcessSpec) -> None:
        process.kill()
        await self.supervisor.remove(process)
        self.supervisor.add(spec)

    def submit(self, asking: Asking) -> None:
        """A client asks."""
        gateway = f"g{asking.gateway % self.scenario.num_gateways}"
        process = self.processes.get(gateway)
        HistoryClient(self.world, asking, gateway, process.life if process else None)


def worker_spec(role: str, service_id: str) -> ProcessSpec:
    """Return the worker of a role."""
    return ProcessSpec("worker", service_id, ("--role", role), role=role)


def _standby_spec(service_id: str) -> ProcessSpec:
    spec = worker_spec("unified", service_id)
    return replace(spec, flags=(*spec.flags, "--standby"))


def _scaled(scenario: SeedScenario) -> tuple[tuple[str, ...], bool]:
    """Return the roles that are scaled, and whether the autoscaler does it, else the operator.

    As `headway up` has it: a policy that does not scale some of the workers scales none.
    """
    policies = PolicyOptions(preset=scenario.preset, profile=PROFILE)
    scaled = policies.scaled_roles()
    scales = policies.scaling_policy() == find_preset(scenario.preset).scaling
    if scales and set(scenario.roles) <= set(scaled):
        return scaled, True
    return tuple(role.value for role in Role), False


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
