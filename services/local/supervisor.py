"""The services of one machine: started together, found by health, drained in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.errors import HeadwayError
from services.local.forked import Template
from services.local.launch import LaunchingMachine
from services.local.process_spec import ProcessSpec
from services.local.supervised import SupervisedProcess
from services.runtime.config import ServiceConfig, host_and_port
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole
from services.runtime.rooms import child_environment
from services.runtime.store import Member, Store

__all__ = ["ProcessSpec", "SupervisedProcess", "Supervisor"]

_HEALTH_TIMEOUT = 1.0
_KILL_AFTER = 5.0  # seconds beyond the drain timeout
_STOP_FIRST = ("gateway", "scheduler")
"""The rest follows together, but for commands (the store): what drains needs it."""


class Supervisor:
    """A local cluster; ``config`` says which store and cluster, and how long a drain takes.

    ``machine``: where its processes run; None for this one.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        config: ServiceConfig,
        log_folder: Path,
        say: Callable[[str], None],
        machine: LaunchingMachine | None = None,
    ) -> None:
        log_folder.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._log_folder = log_folder
        self._say = say
        self._store: Store | None = None
        self.machine = machine or LaunchingMachine(Template(log_folder))
        self.processes = [self._process(spec) for spec in specs]

    def _process(self, spec: ProcessSpec) -> SupervisedProcess:
        return SupervisedProcess(
            spec, self._log_folder, self._say, self._serving_address, self.machine
        )

    async def start(self) -> None:
        """Start everything at once: services wait for the store, and for each other, themselves."""
        for process in self.processes:
            process.start(self._environment())
        await asyncio.gather(*(p.serving() for p in self.processes if p.spec.command))
        self._store = await self.machine.connect(self._config)

    def add(self, spec: ProcessSpec) -> SupervisedProcess:
        """Add a service and start it at once."""
        process = self._process(spec)
        self.processes.append(process)
        process.start(self._environment())
        return process

    async def remove(self, process: SupervisedProcess) -> None:
        """Drain one, and know it no more."""
        await self._stop_all([process])
        if process in self.processes:
            self.processes.remove(process)

    def _environment(self) -> Mapping[str, str]:
        secret = self._config.cluster_secret_file
        return {
            **child_environment(),
            # not on the command line, which everybody may read: the URL may hold a password
            "HEADWAY_STORE": self._config.store,
            "HEADWAY_CLUSTER": self._config.cluster,
            **({"HEADWAY_CLUSTER_SECRET_FILE": str(secret)} if secret else {}),
        }

    async def serving(self) -> None:
        """Return once every process serves; FAILED_PRECONDITION where one has been given up."""
        await asyncio.gather(*(process.serving() for process in self.processes))

    async def _serving_address(self, spec: ProcessSpec, pid: int) -> str:
        """Return the address where the process serves, by membership and health; "" until then."""
        if spec.command:
            return spec.address if await _takes_connections(spec.address) else ""
        if self._store is None:
            return ""
        try:
            members = await self._store.members(spec.membership or spec.service)
        except HeadwayError:
            return ""
        for member in members:
            mine = member.member_id == spec.service_id and member.detail.get("pid") == str(pid)
            if mine and (spec.membership or await self._is_healthy(member)):
                return member.address
        return ""

    async def _is_healthy(self, member: Member) -> bool:
        role = ServiceRole(member.service)
        return await is_serving(member.address, self._config, role, within=_HEALTH_TIMEOUT)

    async def stop(self) -> None:
        """Drain gateways, then schedulers, then the rest, the store last; none is left behind."""
        rest = [p for p in self.processes if not p.spec.command]
        for service in _STOP_FIRST:
            await self._stop_all([p for p in rest if p.spec.service == service])
        await self._stop_all(rest)
        await self._stop_all(self.processes)
        self.machine.close()
        if self._store is not None:
            await self._store.close()

    def kill(self) -> None:
        """End everything now."""
        for process in self.processes:
            process.kill()
        self.machine.close()

    async def _stop_all(self, processes: Sequence[SupervisedProcess]) -> None:
        patience = self._config.drain_timeout + _KILL_AFTER
        await asyncio.gather(*(process.stop(patience) for process in processes))


async def _takes_connections(address: str) -> bool:
    try:
        if address.startswith("unix:"):
            _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            _, writer = await asyncio.open_connection(*host_and_port("address", address))
    except OSError:
        return False
    writer.close()
    return True
