"""Workers of this machine that are loaded and warm, and wait for a role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headway.errors import HeadwayError
from services.local.process_spec import ProcessSpec
from services.local.supervised import SupervisedProcess
from services.local.supervisor import Supervisor
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger

MEMBERSHIP = "standby"
REFILL_AFTER = 5.0
"""Seconds without an order before another is started: what was ordered needs the machine first."""
_CALL_TIMEOUT = 5.0
_POLL_INTERVAL = 0.1


class StandbyWorkers:
    """A stock of ``number`` standby workers; ``make_spec`` makes the one of an id."""

    def __init__(
        self,
        supervisor: Supervisor,
        config: ServiceConfig,
        number: int,
        make_spec: Callable[[str], ProcessSpec],
        refill_after: float = REFILL_AFTER,
    ) -> None:
        self._supervisor = supervisor
        self._config = config
        self._number = number
        self._make_spec = make_spec
        self._refill_after = refill_after
        self._refill_at = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def num_ready(self) -> int:
        """Workers that are warm."""
        return len(self._ready())

    def start(self) -> None:
        """Keep them from now on."""
        self._keeping = essential(self._keep(), "standby workers")

    async def stop(self) -> None:
        """Start no more; those that are there stay."""
        await end_tasks(*self._telling, self._keeping)

    def take(
        self, role: str, make_spec: Callable[[str, str], ProcessSpec]
    ) -> SupervisedProcess | None:
        """Return the oldest that is warm, told to be what ``make_spec`` says of role and id.

        None where none is warm.
        """
        self._refill_at = asyncio.get_running_loop().time() + self._refill_after
        process = next(iter(self._ready()), None)
        if process is None:
            return None
        address = process.address
        process.become(make_spec(role, process.spec.service_id))
        task = asyncio.create_task(self._tell(process, address))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return process

    async def _tell(self, process: SupervisedProcess, address: str) -> None:
        """Start anew, with its role, a worker that cannot be told."""
        async with open_channel(address, self._config, ServiceRole.WORKER) as channel:
            try:
                await wire.activate(channel, process.spec.role, within=_CALL_TIMEOUT)
            except HeadwayError as error:
                worker_id = process.spec.service_id
                get_logger().warning("standby_lost", worker_id=worker_id, error=error.message)
                process.restart()

    async def _keep(self) -> None:
        with suppress(HeadwayError):  # what does not start has said so
            await self._supervisor.serving()  # the machine is the others' until then
        while True:
            is_quiet = asyncio.get_running_loop().time() >= self._refill_at
            for _ in range(self._number - len(self._there()) if is_quiet else 0):
                spec = self._make_spec(free_id(self._supervisor, "standby"))
                self._supervisor.add(replace(spec, role="", membership=MEMBERSHIP))
            await asyncio.sleep(_POLL_INTERVAL)

    def _there(self) -> list[SupervisedProcess]:
        processes = self._supervisor.processes
        return [process for process in processes if process.spec.membership == MEMBERSHIP]

    def _ready(self) -> list[SupervisedProcess]:
        return [process for process in self._there() if process.address]


def free_id(supervisor: Supervisor, prefix: str) -> str:
    """Return the lowest number behind a prefix that no process has."""
    taken = {process.spec.service_id for process in supervisor.processes}
    numbers = range(1, len(taken) + 2)
    return next(name for n in numbers if (name := f"{prefix}-{n}") not in taken)
