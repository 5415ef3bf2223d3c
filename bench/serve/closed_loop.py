"""A closed loop: so many requests in flight, each followed by the next, as cheaply as can be.

Only the parser (C) looks at what comes, so that the client leaves the cores to what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from bench.serve.client import Endpoint
from headway.errors import Code, HeadwayError

PATIENCE = 60.0  # seconds beyond the run for what is still in flight


@dataclass(slots=True)
class Loop:
    """Times of answered requests (s), and the seconds from the first to the last end."""

    until: float = 0.0
    times: list[float] = field(default_factory=list)
    took: float = 0.0


class _Caller(asyncio.Protocol):
    """A connection that asks again until the time is up."""

    def __init__(self, request: bytes, loop: Loop, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at = 0.0
        self.ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection closed ({error or 'by the server'})")

    def on_message_complete(self) -> None:
        now, status = time.perf_counter(), self._parser.get_status_code()
        if status != 200:
            self._fail(f"HTTP {status}")
            return
        self._loop.times.append(now - self._sent_at)
        if now < self._loop.until:
            self._ask()
        elif not self.ended.done():
            self.ended.set_result(None)
            self._transport.close()

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(HeadwayError(Code.UNAVAILABLE, why))
            self._transport.close()


async def run_loop(endpoint: Endpoint, path: str, bodies: Sequence[bytes], seconds: float) -> Loop:
    """Keep one request in flight per body; HeadwayError where one is not answered with 200."""
    running = asyncio.get_running_loop()
    began_at = time.perf_counter()
    loop = Loop(until=began_at + seconds)
    ended: list[asyncio.Future[None]] = []
    for body in bodies:
        ended.append(running.create_future())
        caller = _Caller(endpoint.request("POST", path, body), loop, ended[-1])
        await running.create_connection(lambda caller=caller: caller, endpoint.host, endpoint.port)  # type: ignore[misc]
    try:
        async with asyncio.timeout(seconds + PATIENCE):
            await asyncio.gather(*ended)
    except TimeoutError:
        message = f"not all answered {PATIENCE:g} s after the last had been sent"
        raise HeadwayError(Code.DEADLINE_EXCEEDED, message) from None
    loop.took = time.perf_counter() - began_at
    return loop
