"""The machine that launches a service's process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from services.local.forked import NotForked, Template
from services.local.process_spec import ProcessSpec
from services.local.tether import tethered
from services.runtime.machine import Machine


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
