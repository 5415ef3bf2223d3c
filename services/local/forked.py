"""Services as copies of one process that has imported what they need (Linux)."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.local.template import MOST_BYTES
from services.local.tether import tethered
from services.runtime.huge_pages import with_huge_pages
from services.runtime.rooms import child_environment, module_command

LOG = "template.log"
_MODULE = "services.local.template"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Order:
    """A service to fork, in ``environment`` alone, once ``imports`` are imported.

    ``argv``: the service's id and its flags.
    """

    service: str
    argv: tuple[str, ...]
    imports: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def modules(self) -> tuple[str, ...]:
        """Return what is imported before the fork."""
        return (f"services.{self.service}.__main__", *self.imports)


class NotForked(Exception):  # noqa: N818 (no error: the service is executed instead)
    """There is no copy; the message says why."""


class ForkedProcess:
    """A process that this one has as a child without having forked it.

    The parts of ``asyncio.subprocess.Process`` that a supervisor uses.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._handle = os.pidfd_open(pid)
        loop.add_reader(self._handle, self._take_status)

    def _take_status(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with suppress(ChildProcessError):  # its own children that it has left behind are ours now
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Return its exit status; minus the number of the signal that ended it."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)


class Template:
    """The process that is copied; it starts with the first order, and anew where it has ended."""

    def __init__(self, log_folder: Path, ahead: Sequence[str] = ()) -> None:
        """``ahead``: modules that it imports whether ordered or not, once it runs."""
        self._log_path = log_folder / LOG
        self._ahead = ahead
        self._orders = asyncio.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it before the first order, where this system can; nothing where it runs."""
        if self._connection is None and _forks():
            with suppress(OSError):  # said again, and taken, at the first order
                self._connection = self._start()

    async def fork(self, order: Order, log: int) -> ForkedProcess:
        """Start a service that writes to ``log``; NotForked where it must be executed."""
        if not _forks():
            raise NotForked("this system cannot")
        message = json.dumps({**asdict(order), "supervisor": os.getpid()}).encode()
        if len(message) > MOST_BYTES:
            raise NotForked(f"its flags and environment are longer than {MOST_BYTES} bytes")
        async with self._orders:
            try:
                answer = await self._ask(message, log)
            except BaseException as error:
                self.stop()
                if isinstance(error, OSError):
                    raise NotForked(str(error)) from error
                raise
        if "pid" not in answer:
            raise NotForked(str(answer["refused"]))
        return ForkedProcess(answer["pid"])

    async def _ask(self, message: bytes, log: int) -> dict[str, Any]:
        if self._connection is None:
            self._connection = self._start()
        socket.send_fds(self._connection, [message], [log])
        said = await asyncio.get_running_loop().sock_recv(self._connection, MOST_BYTES)
        if not said:
            raise ConnectionResetError(f"what it is copied from has ended: see {self._log_path}")
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _start(self) -> socket.socket:
        # else a service would belong to the system's first process: nobody here would hear of
        # its end, and it would survive this process
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
            raise OSError("the system does not let this process take orphans")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        environment = child_environment()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(module_command(_MODULE, str(theirs.fileno()), *self._ahead)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # numpy's BLAS starts its threads when it is imported
                env={**(with_huge_pages(environment) or environment), "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return ours

    def stop(self) -> None:
        """End it; its copies stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._connection is not None:
            with suppress(OSError, ValueError, KeyError):  # a copy that nobody waits for any more
                os.kill(json.loads(self._connection.recv(MOST_BYTES))["pid"], signal.SIGKILL)
            self._connection.close()
            self._connection = None


def _forks() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")
