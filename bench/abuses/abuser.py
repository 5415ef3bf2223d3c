"""The abuser: clients in a process of their own, so that nobody's clock waits for their work."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import httpx

from bench.abuses.catalogue import Abuse, Manner

PATIENCE = 90.0
"""Seconds for one answer, as for a user."""
_BEGUN, _END = "begun", "end"


class AbuseEnd(NamedTuple):
    """An abuse's outcome for who did it: answers by status, and errors of the clients."""

    statuses: Mapping[int, int]
    errors: list[str]


class Abuser:
    """The other end of a process that abuses when it is told to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self, abuse: Abuse) -> None:
        """Begin; returns once the clients are there."""
        await asyncio.to_thread(self._connection.send, abuse)
        assert await asyncio.to_thread(self._connection.recv) == _BEGUN

    async def end(self) -> AbuseEnd:
        """End it, and return what has come of it."""
        await asyncio.to_thread(self._connection.send, _END)
        ended: AbuseEnd = await asyncio.to_thread(self._connection.recv)
        return ended


@asynccontextmanager
async def abuser_at(url: str, model: str, key: str, operator_key: str) -> AsyncIterator[Abuser]:
    """Start the process; it ends with the block, or with this process."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(theirs, _Clients(url, model, key, operator_key)), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield Abuser(ours)
    finally:
        ours.close()
        await asyncio.to_thread(process.join, PATIENCE)


def _run(connection: Connection, clients: _Clients) -> None:
    with suppress(EOFError):
        while True:
            asyncio.run(_abuse_once(connection, clients))


async def _abuse_once(connection: Connection, clients: _Clients) -> None:
    abuse: Abuse = await asyncio.to_thread(connection.recv)
    statuses: Counter[int] = Counter()
    async with clients.opened(abuse) as client:
        tasks = [
            asyncio.create_task(clients.keep_at(abuse, client, statuses))
            for _ in range(abuse.at_once)
        ]
        connection.send(_BEGUN)
        try:
            await asyncio.to_thread(connection.recv)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [repr(each) for each in ended if isinstance(each, Exception)]
    connection.send(AbuseEnd(dict(statuses), errors))


@dataclass(frozen=True, slots=True)
class _Clients:
    """Where to abuse, and with which keys."""

    url: str
    model: str
    key: str
    operator_key: str

    def opened(self, abuse: Abuse) -> httpx.AsyncClient:
        """Return a client for all connections of an abuse; one a connection would begin slowly."""
        headers = {
            "authorization": f"Bearer {self.operator_key if abuse.is_operator else self.key}",
            "content-type": "application/json",
            "x-request-id": "abuse",
        }
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, limits=limits
        )

    async def keep_at(
        self, abuse: Abuse, client: httpx.AsyncClient, statuses: Counter[int]
    ) -> None:
        """Do it over and over; count the answers by status."""
        sent = abuse.sent(self.model)
        content = json.dumps(sent).encode() if sent else b""
        while abuse.manner in (Manner.READS, Manner.LEAVES):
            statuses[await _send(client, abuse, content)] += 1
        while True:
            with suppress(OSError):
                await self._hold(abuse, content)

    async def _hold(self, abuse: Abuse, content: bytes) -> None:
        """Open a connection, send what the abuse sends, and keep it until it is closed."""
        url = httpx.URL(self.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            if abuse.manner is not Manner.HANGS:
                head = (
                    f"POST {abuse.path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n"
                    f"Authorization: Bearer {self.key}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                )
                is_half = abuse.manner is Manner.STALLS
                writer.write(head.encode() + content[: len(content) // (2 if is_half else 1)])
                await writer.drain()
            if abuse.manner is Manner.STARES:
                await asyncio.Event().wait()
            await reader.read()
        finally:
            writer.close()


async def _send(client: httpx.AsyncClient, abuse: Abuse, content: bytes) -> int:
    """Ask once; return the status, 0 where the connection was cut, as for sending too much."""
    request = client.build_request("POST" if content else "GET", abuse.path, content=content)
    try:
        answer = await client.send(request, stream=True)
    except httpx.TransportError:
        return 0
    try:
        async for _ in answer.aiter_raw():
            if abuse.manner is Manner.LEAVES:
                break
    except httpx.TransportError:
        return 0
    finally:
        await answer.aclose()
    return answer.status_code
