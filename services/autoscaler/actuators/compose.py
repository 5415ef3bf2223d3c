"""``compose``: one service of the compose project per role, scaled by the command line."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping

from headway.errors import Code, HeadwayError
from services.autoscaler.actuators.protocol import Actuator

_TIMEOUT = 120.0  # removed containers drain within it
_SHOWN = 300  # characters of the command's error output


class ComposeActuator(Actuator):
    """An actuator that calls ``command ps`` and ``command up --scale``; ``services`` by role."""

    name = "compose"

    def __init__(self, command: str, services: Mapping[str, str]) -> None:
        self._command = tuple(shlex.split(command))
        self._services = services

    async def ordered(self) -> Mapping[str, int]:
        """Return the number of containers, by role."""
        counts: dict[str, int] = {}
        for role, service in self._services.items():
            counts[role] = len((await self._run("ps", "--quiet", service)).split())
        return counts

    async def scale(self, role: str, num_instances: int) -> None:
        """Run compose until it returns; a container that is removed gets SIGTERM and drains."""
        service = self._services[role]
        await self._run(
            *("up", "--detach", "--no-deps", "--no-recreate"),
            *("--scale", f"{service}={num_instances}", service),
        )

    async def _run(self, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            message = f"cannot run {self._command[0]} ({error}): see --compose-command"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
        try:
            async with asyncio.timeout(_TIMEOUT):
                out, complaint = await process.communicate()
        except TimeoutError as error:
            message = f"{shlex.join(self._command)} took over {_TIMEOUT:g} s"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            said = complaint.decode(errors="replace").strip()[-_SHOWN:]
            message = f"{shlex.join((*self._command, *arguments))} failed: {said}"
            raise HeadwayError(Code.UNAVAILABLE, message)
        return out.decode(errors="replace")
