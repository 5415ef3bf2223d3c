"""The hosts of a history as their supervisor's machine: each runs one process at a time."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from proof.vopr.processes import VirtualProcess
from proof.vopr.scenario import SUPERVISOR, SeedScenario, names
from proof.vopr.world import ShellWorld
from services.local.launch import LaunchedProcess, LaunchingMachine
from services.local.process_spec import ProcessSpec
from services.runtime.config import ServiceConfig
from services.runtime.store import Store

NO_ROOM = 126


class VirtualHost:
    """Conditions between an order to launch a process and its life."""

    def __init__(self, failures: Iterable[int] = (), seconds: float = 0.0) -> None:
        self.failures = deque(failures)
        """The exit statuses of the next lives, which never serve; ``NO_ROOM`` for none at all."""
        self.seconds = seconds
        """How long the next start takes."""
        self._num_downs = 0
        self.is_up = asyncio.Event()
        self.is_up.set()

    def hold(self) -> None:
        """Start nothing until ``release``."""
        self._num_downs += 1
        self.is_up.clear()

    def release(self) -> None:
        """Start what is waited for, unless something else holds it."""
        self._num_downs -= 1
        if not self._num_downs:
            self.is_up.set()


class VirtualHosts(LaunchingMachine):
    """All hosts, by name; a new worker gets a new one. ``start`` begins a life on one."""

    def __init__(
        self,
        scenario: SeedScenario,
        world: ShellWorld,
        start: Callable[[str, ProcessSpec], LaunchedProcess],
    ) -> None:
        self._world = world
        self._start = start
        self._rng = world.wires.own[SUPERVISOR]
        self.by_name: defaultdict[str, VirtualHost] = defaultdict(VirtualHost)
        self.names = {name: name for name in names(scenario)}
        """Names of hosts, by their processes' ids."""
        self._next_worker = len(scenario.roles)
        self.of_next_worker = VirtualHost()
        """Conditions of the next new worker's host."""
        self.failed_starts: Counter[str] = Counter()
        """By process's id."""

    async def connect(self, config: ServiceConfig) -> Store:
        """Return a store that may be away."""
        return self._world.connect(config)

    def name_of(self, service_id: str) -> str:
        """Return the host of a process."""
        if service_id not in self.names:
            self.names[service_id] = name = f"w{self._next_worker}"
            self._next_worker += 1
            self.by_name[name], self.of_next_worker = self.of_next_worker, VirtualHost()
        return self.names[service_id]

    async def launch(
        self,
        spec: ProcessSpec,
        environment: Mapping[str, str],
        log_path: Path,
        show: Callable[[str], None],
    ) -> LaunchedProcess:
        """Start a life of the process, once its host lets it; OSError where the host is full."""
        name = self.name_of(spec.service_id)
        host, world = self.by_name[name], self._world
        if host.seconds:
            seconds, host.seconds = host.seconds, 0.0
            await asyncio.sleep(seconds)
        await host.is_up.wait()
        if not host.failures:
            return self._start(name, spec)
        status = host.failures.popleft()
        self.failed_starts[spec.service_id] += 1
        if status == NO_ROOM:
            world.hit("a host has no room for a process")
            raise OSError("no room")
        world.hit("a process dies before it serves")
        process = VirtualProcess(world, name)
        world.loop.later(self._rng.random() * 0.5, partial(process.ended, status))
        return process

    def kill(self, process: LaunchedProcess) -> None:
        """End a process at once."""
        process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Do nothing: nothing is copied."""
