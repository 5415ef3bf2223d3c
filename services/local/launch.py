"""A service's process, and the machine that launches it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.local.forked import NotForked, Order, Template
from services.local.tether import tethered
from services.runtime.machine import Machine
from services.runtime.rooms import module_command


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A service: ``python -m services.<service> --service-id <service_id> <flags>``.

    With ``imports``, which may be none, it is a copy of the process that has imported these
    modules; None: it is executed. With ``command`` that instead, which then serves once
    ``address`` takes connections. ``role`` of a worker that may be scaled, for who scales it.
    ``membership``: what it is a member as while it waits to be told more, where that is not its
    service.
    """

    service: str
    service_id: str
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    address: str = ""
    role: str = ""
    membership: str = ""
    imports: tuple[str, ...] | None = None

    def command_line(self) -> list[str]:
        """Return the command to execute."""
        if self.command:
            return list(self.command)
        module = f"services.{self.service}"
        return module_command(module, "--service-id", self.service_id, *self.flags)

    def order(self, environment: Mapping[str, str]) -> Order:
        """Return the order of a copy."""
        argv = (self.service_id, *self.flags)
        return Order(self.service, argv, self.imports or (), environment)


class LaunchedProcess(Protocol):
    """The parts of ``asyncio.subprocess.Process`` that a supervisor uses."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit status, minus the number of the signal that ended it; None while it runs."""

    async def wait(self) -> int:
        """Return its exit status."""

    def send_signal(self, number: int) -> None:
        """Send it a signal."""


class LaunchingMachine(Machine):
    """The machine under a supervisor, which launches processes; a proof gives its own."""

    def __init__(self, template: Template) -> None:
        self._template = template

    async def launch(
        self,
        spec: ProcessSpec,
        environment: Mapping[str, str],
        log_path: Path,
        show: Callable[[str], None],
    ) -> LaunchedProcess:
        """Start a process that adds to its log; OSError where this cannot be."""
        with log_path.open("ab") as log:
            if spec.imports is not None:
                try:
                    return await self._template.fork(spec.order(environment), log.fileno())
                except NotForked as reason:
                    show(f"executed, not copied: {reason}")
            return await asyncio.create_subprocess_exec(
                *tethered(spec.command_line()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the supervisor: it drains in order
            )

    def kill(self, process: LaunchedProcess) -> None:
        """End a process and what it may have started, at once."""
        with suppress(ProcessLookupError):  # it has ended, and nobody has been told yet
            os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Launch no more; processes stay."""
        self._template.stop()
