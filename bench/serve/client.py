"""A lean HTTP/1.1 client: what stamps the tokens must not slow them.

A general client spends some 100 µs of Python on a streamed token, which two cores shared with
the server would measure; here a token costs the parser (C), one split and one ``json.loads``.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast
from urllib.parse import urlsplit

import httptools

from bench.serve.sse import DONE, BadStreamError, EventSplitter
from headway.errors import Code, HeadwayError, invalid

MOST_BODY_BYTES = 4 * 2**20
CONNECT_TIMEOUT = 10.0
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
OnEvent = Callable[[bytes, float], None]


class RequestFailedError(Exception):
    """Why a request has no answer: a kind to count by, and what exactly."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


def error_text(body: bytes | bytearray) -> str:
    """Return the message of OpenAI's error object, or the start of whatever came."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = bytes(body[:200]).decode("utf-8", "replace")
    return str(message)[:300]


def _is_graphic(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server that requests go to; ``prefix`` comes before every path."""

    host: str
    port: int
    prefix: str
    tls: bool
    api_key: str = ""

    @classmethod
    def parse(cls, url: str, api_key: str = "") -> Endpoint:
        """Read a base URL, with or without the ``/v1`` at its end."""
        limit = "http://HOST[:PORT] or https://HOST[:PORT]"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise invalid("url", url, limit) from None
        plain = _is_graphic(parts.netloc + parts.path)
        known = parts.scheme in ("http", "https")
        if not (known and plain and parts.hostname) or parts.query:
            raise invalid("url", url, limit)
        if api_key and not _is_graphic(api_key):
            raise HeadwayError(Code.INVALID_ARGUMENT, "api_key has characters that no header takes")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), prefix, tls, api_key)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        """Return the bytes of a request; ``headers`` come beside its own."""
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Accept: text/event-stream, application/json",
            "User-Agent: headway-bench",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Response:
    """A response while it comes: events go to ``on_event``, anything else into ``body``."""

    on_event: OnEvent | None
    ended: asyncio.Future[None]
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    events: EventSplitter | None = None
    done: bool = False

    def take(self, data: bytes, now: float) -> None:
        """Take a part of the body."""
        if self.events is None or self.on_event is None:
            if len(self.body) + len(data) > MOST_BODY_BYTES:
                raise BadStreamError(f"a body of over {MOST_BODY_BYTES} bytes")
            self.body += data
            return
        for event in self.events.feed(data):
            self.done = self.done or event == DONE
            self.on_event(event, now)


class Connection(asyncio.Protocol):
    """A connection, one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._now = 0.0
        self.transport: asyncio.Transport | None = None
        self.num_answered = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def send(self, request: bytes, on_event: OnEvent | None) -> Response:
        """Send; wait for the response's ``ended``."""
        assert self.transport is not None
        self._response = Response(on_event, self._loop.create_future())
        self.transport.write(request)
        return self._response

    def abort(self) -> None:
        """Hang up."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Asyncio's: stamps what came."""
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(RequestFailedError("bad response", f"no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio's."""
        self.closed = True
        response = self._response
        if response is not None and response.done:  # a body that ends with its connection
            self._end()
        elif response is not None:
            detail = f"closed before the end ({error or 'by the server'})"
            self._fail(RequestFailedError("connection", detail))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; called by the parser."""
        if name.lower() != b"content-type" or self._response is None:
            return
        if value.startswith(b"text/event-stream"):
            self._response.events = EventSplitter()

    def on_headers_complete(self) -> None:
        """Take the status; called by the parser."""
        if self._response is not None:
            self._response.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body; called by the parser."""
        if self._response is None:
            return
        try:
            self._response.take(data, self._now)
        except BadStreamError as error:
            kind = "error event" if str(error).startswith("error event") else "bad response"
            self._fail(RequestFailedError(kind, str(error)))

    def on_message_complete(self) -> None:
        """End the message; called by the parser."""
        self.num_answered += 1
        if not self._parser.should_keep_alive():
            self.closed = True
        self._end()

    def _end(self) -> None:
        response, self._response = self._response, None
        if response is not None and not response.ended.done():
            response.ended.set_result(None)
        if self.closed and self.transport is not None:
            self.transport.close()

    def _fail(self, error: RequestFailedError) -> None:
        response, self._response = self._response, None
        if response is not None and not response.ended.done():
            response.ended.set_exception(error)
        self.abort()


class Client:
    """Requests to one endpoint, over connections that are kept for the next.

    A request that has not ended after ``patience`` seconds fails.
    """

    def __init__(self, endpoint: Endpoint, patience: float) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._ssl = ssl.create_default_context() if endpoint.tls else None
        self._idle: list[Connection] = []

    async def get(self, path: str) -> Response:
        """Return a whole response; RequestFailedError where none comes."""
        return await self._exchange(self._endpoint.request("GET", path), None)

    async def post(
        self, path: str, body: bytes, on_event: OnEvent, headers: Mapping[str, str] = NO_HEADERS
    ) -> Response:
        """Post a body; a streamed response goes to ``on_event(data, instant)``."""
        request = self._endpoint.request("POST", path, body, headers)
        return await self._exchange(request, on_event)

    def close(self) -> None:
        """Hang up on idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _exchange(self, request: bytes, on_event: OnEvent | None) -> Response:
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    connection = self._take_idle() or await self._connect()
                    response = connection.send(request, on_event)
                    try:
                        await response.ended
                    except RequestFailedError:
                        if connection.num_answered and not response.status:
                            continue  # the server had closed an idle connection
                        raise
                    finally:
                        self._give_back(connection, response)
                    return response
        except TimeoutError:
            raise RequestFailedError("timeout", f"no end within {self._patience:g} s") from None

    async def _connect(self) -> Connection:
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), endpoint.host, endpoint.port, ssl=self._ssl
                )
        except TimeoutError:
            raise RequestFailedError("connection", f"none in {CONNECT_TIMEOUT:g} s") from None
        except OSError as error:
            raise RequestFailedError("connection", str(error)) from None
        return connection

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _give_back(self, connection: Connection, response: Response) -> None:
        ended = response.ended.done() and not response.ended.cancelled()
        if ended and not connection.closed:
            self._idle.append(connection)
        else:
            connection.abort()
