"""A real HTTP server on loopback in front of a handler that echoes, and raw clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headway.errors import Code, HeadwayError
from services.gateway.bounds import ClientBounds
from services.gateway.http.exchange import Exchange, HttpCaller, HttpLimits, HttpRefusal
from services.gateway.http.server import HttpServer
from services.gateway.openai.replies import respond_error

LIMITS = HttpLimits(
    max_body_bytes=1000,
    max_head_bytes=2000,
    max_unsent_bytes=100_000,
    head_timeout=0.3,
    body_timeout=0.3,
    idle_timeout=0.5,
)


MAX_CONNECTIONS = 20


def bounds(share: float = 1.0, *, buffered: int = 10**6) -> ClientBounds:
    return ClientBounds.of(
        share,
        max_connections=MAX_CONNECTIONS,
        max_buffered_bytes=buffered,
        max_waiting=100,
        max_open_requests=100,
        max_mask_seconds=100.0,
    )


@dataclass
class EchoHandler:
    """``/echo`` answers at once, ``/hold`` when told to; ``/no`` is screened out."""

    held: list[Exchange] = field(default_factory=list)
    served: list[bytes] = field(default_factory=list)
    """Bodies, in order."""
    num_gone: int = 0
    num_cut_off: int = 0

    def screen(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: str
    ) -> HttpCaller:
        if path == "/no":
            raise HttpRefusal(401, HeadwayError(Code.UNAUTHENTICATED, "who are you"))
        return HttpCaller(address)

    def serve(self, exchange: Exchange) -> None:
        self.served.append(bytes(exchange.body))
        if exchange.path == "/hold":
            exchange.on_gone = self.gone
            self.held.append(exchange)
        else:
            exchange.respond(200, "text/plain", exchange.method.encode() + b":" + exchange.body)

    def refuse(self, exchange: Exchange, refusal: HttpRefusal) -> None:
        respond_error(exchange, refusal.error, refusal.status, refusal.code)

    def cut_off(self) -> None:
        self.num_cut_off += 1

    def gone(self) -> None:
        self.num_gone += 1


@dataclass
class Client:
    """One raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.response()

    async def response(self) -> bytes:
        """Head and body of a response with a length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        lines = head.lower().split(b"\r\n")
        length = next(int(x[15:]) for x in lines if x.startswith(b"content-length:"))
        return head + await asyncio.wait_for(self.reader.readexactly(length), 10)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 10)


@dataclass
class Listening:
    """A running server."""

    server: HttpServer
    handler: EchoHandler
    port: int

    async def client(self, address: str = "127.0.0.1") -> Client:
        """Connect from an address of this machine."""
        connect = asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        return Client(*await connect)

    async def works(self) -> bool:
        client = await self.client()
        return (await client.ask(post(b"x"))).endswith(b"POST:x")


@asynccontextmanager
async def listening(
    limits: HttpLimits = LIMITS, shared: ClientBounds | None = None
) -> AsyncIterator[Listening]:
    handler = EchoHandler()
    server = HttpServer(handler, limits, shared or bounds())
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield Listening(server, handler, port)
    finally:
        server.stop()


def post(body: bytes, path: bytes = b"/echo") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
