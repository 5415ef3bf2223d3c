"""Proxies in front of services: they delay, hold back or cut what one service says to another.

Every service is announced at its proxy's address, so all that others say to it passes here. Bytes
are forwarded as they are. Who has dialled is read from the kernel's table of connections (Linux),
which takes tens of milliseconds: only for links that a fault hits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from services.runtime.essential import end_tasks

_CHUNK_BYTES = 64 * 1024
_LISTEN_PATIENCE = 5.0  # seconds: a service that restarts does not listen yet
Link = tuple[str, str]
"""The service that dialled, and the service that it dialled."""


@dataclass(slots=True, eq=False)
class Rules:
    """The fate of the bytes of each link; ``changed`` is set anew at every change."""

    delays: dict[Link, float] = field(default_factory=dict)
    """Seconds that each piece is late, in both directions."""
    held: set[tuple[Link, bool]] = field(default_factory=set)
    """Links whose bytes wait; True: those to the dialled service, False: those back."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake those that wait, to look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def concern(self, service_id: str) -> bool:
        """Return whether a link to this service has a rule."""
        links = (*self.delays, *(link for link, _ in self.held))
        return any(link[1] == service_id for link in links)

    async def pass_on(self, link: Link, forward: bool) -> None:
        """Return when a piece may go on."""
        delay = self.delays.get(link, 0.0)
        if delay:
            await asyncio.sleep(delay)
        while (link, forward) in self.held:
            await self._changed.wait()


class ProxiedConnection:
    """One connection through a proxy, from a local port to a service."""

    def __init__(self, port: int, service_id: str, dialler: Callable[[int], str]) -> None:
        self._port = port
        self._service_id = service_id
        self._dialler = dialler
        self._writers: list[asyncio.StreamWriter] = []
        self.dialled_by = ""  # "" until it is asked for
        self.began_at = asyncio.get_running_loop().time()

    @property
    def link(self) -> Link:
        """Its link, as far as it is known."""
        return self.dialled_by, self._service_id

    async def find_link(self) -> Link:
        """Return its link; the dialler is "" where it is no service of ours."""
        if not self.dialled_by:
            self.dialled_by = await asyncio.to_thread(self._dialler, self._port)
        return self.link

    def between(self, *writers: asyncio.StreamWriter) -> None:
        """Take both ends, once they are there."""
        self._writers += writers

    def reset(self) -> None:
        """Break it in both directions."""
        for writer in self._writers:
            writer.transport.abort()


class Proxy:
    """A proxy on ``port`` before ``service_id``, which listens on ``target_port``.

    ``dialler`` returns the service whose socket has a local port, "" if it is none of ours.
    """

    def __init__(
        self,
        service_id: str,
        port: int,
        target_port: int,
        rules: Rules,
        dialler: Callable[[int], str],
    ) -> None:
        self._service_id = service_id
        self._port = port
        self._target_port = target_port
        self._rules = rules
        self._dialler = dialler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: set[ProxiedConnection] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        """Break every connection and listen no more."""
        if self._server is not None:
            self._server.close()
        await end_tasks(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, TimeoutError):
            pass  # one side has gone, so the other learns it
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        connection = ProxiedConnection(port, self._service_id, self._dialler)
        if self._rules.concern(self._service_id):
            await self._rules.pass_on(await connection.find_link(), True)
        async with asyncio.timeout(_LISTEN_PATIENCE):
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        connection.between(writer, back)
        self.connections.add(connection)
        pumps = [
            asyncio.create_task(self._pump(connection, reader, back, True)),
            asyncio.create_task(self._pump(connection, there, writer, False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*pumps)
            self.connections.discard(connection)
            back.transport.abort()

    async def _pump(
        self,
        connection: ProxiedConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        forward: bool,
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(_CHUNK_BYTES):
                await self._rules.pass_on(connection.link, forward)
                writer.write(piece)
                await writer.drain()


def find_dialler(port: int, pids: Mapping[str, int]) -> str:
    """Return which of these processes has a TCP socket with this local port, or ""."""
    inode = _inode_of(port)
    for service_id, pid in pids.items():
        if inode and f"socket:[{inode}]" in _links(pid):
            return service_id
    return ""


def _inode_of(port: int) -> str:
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[9] != "0":
                    return fields[9]
    return ""


def _links(pid: int) -> Collection[str]:
    folder = f"/proc/{pid}/fd"
    links = []
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                links.append(os.readlink(f"{folder}/{name}"))
    return links
