"""One HTTP/1.1 connection: llhttp parses; this file keeps limits and the order of responses.

A server of our own on ``asyncio.Protocol``, because the ready ones either buffer without end
for a client that does not read or have no time limit for slow heads (``docs/decisions.md``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from headway.core.gateway.shares import Bound, Charge
from headway.errors import Code, HeadwayError
from services.gateway.bounds import ClientBounds, client_at
from services.gateway.http.exchange import Exchange, Handler, HttpLimits, HttpRefusal

_LINGER = 2.0  # seconds for a refused client to read why
_FEW_BYTES = 2**16  # unread bytes that are not counted
_MOST_TURNED_AWAY = 64  # connections too many that are told why, at once
_MOST_PIPELINED = 16  # requests that are read while an answer is owed


class ServerSide(Protocol):
    """The part of a server that a connection needs."""

    handler: Handler
    limits: HttpLimits
    date: bytes
    draining: bool
    bounds: ClientBounds
    num_turned_away: int
    time: Callable[[], float]
    connections: set[HttpConnection]


class HttpConnection(asyncio.Protocol):
    """A client's connection; the server's sweep calls ``expire`` at ``expires_at`` (loop time)."""

    def __init__(self, server: ServerSide, made: Callable[[], None] = lambda: None) -> None:
        """``made`` is called once the connection is there, before it counts among the others."""
        self._server = server
        self._made = made
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()  # pipelined behind the current one
        self._current: Exchange | None = None
        self._lingering = False
        self._address = ""
        self._client = ""
        self._is_counted = False  # among the connections; else it is turned away
        self._charge = Charge(server.bounds.buffered)  # for the bytes that wait here
        self._few_bytes = min(_FEW_BYTES, self._limits.max_unsent_bytes)
        self.num_unsent = 0  # bytes of answers that are counted
        self._reading = False  # in the middle of a request
        self._num_read = 0  # bytes of the last read
        self._has_served = False  # a request of that read
        self.expires_at: float | None = server.time() + self._limits.head_timeout
        self._begin_message()

    # --- asyncio.Protocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take in a client that has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername")
        self._address = self._client = client_at(peer[0]) if isinstance(peer, tuple) else "local"
        self._made()
        connections = self._server.bounds.connections
        self._is_counted = connections.take(self._address)
        if self._is_counted:
            self._server.connections.add(self)
        else:
            self._turn_away(connections)

    def _turn_away(self, connections: Bound) -> None:
        """Refuse a connection too many; in a flood without a word."""
        self._server.num_turned_away += 1
        if self._server.num_turned_away > _MOST_TURNED_AWAY:
            self.abort()
        elif connections.num_taken < connections.capacity:
            self._refuse(HttpRefusal(429, connections.refusal(self._address)))
        else:
            message = f"{connections.capacity} connections are open, the most allowed"
            self._refuse(HttpRefusal(503, HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)))

    def data_received(self, data: bytes) -> None:
        """Parse; serve a whole request immediately, or after those before it."""
        if self._lingering or self._parser is None:
            return
        was_reading, was_in_head = self._reading, self._in_head
        self._reading = True
        self._has_served = False
        self._num_read = len(data)
        self._most_head_bytes += len(data)
        if was_in_head:
            self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            # No variable holds the refusal: this frame is in its traceback, and the circle would
            # keep the connection's memory until the garbage collector comes by.
            if not isinstance(error.__context__, HttpRefusal):
                raise
            self._refuse(error.__context__)
        except httptools.HttpParserError as error:
            self._refuse(_bad(400, f"it is not valid HTTP/1.1: {error}"))
        if self._url or not self._in_head:  # in the middle of a request, perhaps the next one
            self._reading = True
        if self._reading or self._waiting or self._charge.amount:
            begins = not was_reading or was_in_head != self._in_head
            self._wait_for_more(begins=begins)

    def _wait_for_more(self, *, begins: bool) -> None:
        """Bound the time and the bytes of what is read in part; a head or a body may begin."""
        limits = self._limits
        if begins and self._reading and self._current is None and not self._lingering:
            self._expire_in(self._patience)
        self._count_bytes()
        if self._in_head and self._unparsed_bytes > limits.max_head_bytes:
            self._refuse(self._head_too_long())

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a client that has left or was cut off."""
        self._server.connections.discard(self)
        self._lingering = True
        self._transport = None
        self._parser = None  # it refers to this connection: its memory must not wait for the gc
        self._waiting.clear()
        self._begin_message()
        self._charge.change("", 0)
        if self._is_counted:
            self._server.bounds.connections.give_back(self._address)
        else:
            self._server.num_turned_away -= 1
        current, self._current = self._current, None
        if current is not None:
            current.gone()

    # --- llhttp's callbacks -----------------------------------------------------------

    def on_message_begin(self) -> None:
        """Time the head of a request, also where it came in one read with the one before it."""
        self._reading = True
        if self._current is None:
            self._expire_in(self._limits.head_timeout)

    def on_url(self, url: bytes) -> None:
        """Take some of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; ignore those after the body (trailers)."""
        if self._in_head:
            name = name.lower()
            known = self._headers.get(name)
            self._headers[name] = value if known is None else known + b", " + value
            if known is not None and name == b"host":
                raise _bad(400, "it has several host headers; HTTP/1.1 allows one")

    def on_headers_complete(self) -> None:
        """Check a complete head; refuse a body that is known to be too long."""
        self._in_head = False
        if self._lingering or self._parser is None:
            return
        self._client = self._address  # who asked before on this connection need not ask again
        most = self._limits.max_head_bytes
        if self._most_head_bytes > most and self._head_bytes() > most:
            raise self._head_too_long()
        headers, version = self._headers, self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _bad(400, f"it speaks HTTP/{version}; this server speaks HTTP/1.1")
        if version == "1.1" and b"host" not in headers:
            raise _bad(400, "it has no host header, which HTTP/1.1 requires")
        if self._parser.should_upgrade():  # llhttp would take the body for the new protocol's
            raise _bad(400, "it asks to upgrade the protocol; have the client use plain HTTP/1.1")
        handler = self._server.handler
        caller = handler.screen(self._method, self._path, headers, self._address)
        self._client = caller.client
        self._max_body_bytes = min(self._limits.max_body_bytes, caller.max_body_bytes)
        self._check_size(int(headers.get(b"content-length") or 0))
        if headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take some of the body."""
        self._check_size(len(self._body) + len(body))
        self._body += body

    def on_message_complete(self) -> None:
        """Serve a complete request, or queue it behind the current one."""
        if self._lingering or self._transport is None or self._parser is None:
            return
        http_1_1 = self._parser.get_http_version() == "1.1"
        exchange = self._exchange(http_1_1=http_1_1, keep_alive=self._parser.should_keep_alive())
        self._reading = False
        self._begin_message()
        if self._current is not None or self._waiting or self._has_served:
            if not self._waiting and self._current is None:  # others' requests come between
                asyncio.get_running_loop().call_soon(self._serve_next)
            self._waiting.append(exchange)
            if len(self._waiting) >= _MOST_PIPELINED:  # unread, its leaving is not noticed either
                self._transport.pause_reading()
        else:
            self._has_served = True
            self._serve(exchange)

    # --- the exchange's responder -----------------------------------------------------

    def send(self, data: bytes, *, last: bool) -> None:
        """Send bytes of the current response."""
        if self._transport is None or self._transport.is_closing() or self._current is None:
            return
        self._transport.write(data)
        if not last:
            return
        if self._charge.amount or self._transport.get_write_buffer_size() > self._few_bytes:
            self.count_unsent()
        keep_alive, self._current = self._current.keep_alive, None
        if self._lingering:
            return
        if not keep_alive or (self._server.draining and not self._waiting):
            self._transport.close()
        elif self._waiting:  # not at once: hundreds of pipelined requests would recurse
            asyncio.get_running_loop().call_soon(self._serve_next)
        else:
            self._transport.resume_reading()
            self._expire_in(self._patience if self._reading else self._limits.idle_timeout)

    def cut_off_if_unread(self, limit: int) -> None:
        """Drop a client that has left over ``limit`` bytes unread, or more than its share."""
        if self._transport is None:
            return
        if self.num_unsent or self._transport.get_write_buffer_size() > self._few_bytes:
            self.count_unsent()
        if self.num_unsent > limit:
            self._server.handler.cut_off()
            self._transport.abort()

    @property
    def is_read_slowly(self) -> bool:
        """True while the client leaves more than a few bytes unread."""
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > self._few_bytes // 2

    # --- the server's sweep and end ---------------------------------------------------

    def abort(self) -> None:
        """Drop the client."""
        if self._transport is not None:
            self._transport.abort()

    def count_unsent(self) -> None:
        """Count the bytes that the client leaves unread, beyond a few; drop it where too many."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self.num_unsent = unsent if unsent > self._few_bytes else 0
        self._count_bytes()

    @property
    def busy(self) -> bool:
        """True if a response is owed."""
        return self._current is not None

    def expire(self) -> None:
        """Refuse a request that is too slow; drop a connection that is silent or not answered."""
        self.expires_at = None
        if self._transport is None:
            return
        if self._lingering or not self._reading or self.busy:
            self._transport.abort()
            return
        what = f"its {'head' if self._in_head else 'body'} took over {self._patience:g} s to arrive"
        self._refuse(_bad(408, f"{what}, the longest allowed"))

    @property
    def _patience(self) -> float:
        """Seconds that the part of a request that is being read may take."""
        return self._limits.head_timeout if self._in_head else self._limits.body_timeout

    def close_if_idle(self) -> None:
        """Close unless a response is owed."""
        if not self.busy and self._transport is not None:
            self._transport.close()

    def _count_bytes(self) -> None:
        """Charge the client with all that waits here; refuse the request where it is too much."""
        if self._transport is None:
            return
        head = self._unparsed_bytes if self._in_head else self._head_bytes()
        waiting = sum(len(exchange.body) for exchange in self._waiting)
        num_bytes = head + len(self._body) + waiting + self.num_unsent
        if self._charge.change(self._client, num_bytes):
            return
        if self.num_unsent or self._lingering:
            self._server.handler.cut_off()
            self.abort()
        else:
            error = self._server.bounds.buffered.refusal(self._client, num_bytes)
            self._refuse(HttpRefusal(429, error))

    def _serve(self, exchange: Exchange) -> None:
        self._current = exchange
        self._expire_in(self._limits.answer_timeout)
        self._server.handler.serve(exchange)

    def _serve_next(self) -> None:
        if self._waiting and self._current is None:
            self._serve(self._waiting.popleft())

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Send a refusal, then close once the client has had time to read it."""
        if self._transport is None or self._lingering:
            return
        self._lingering = True
        self._expire_in(_LINGER)
        if self._current is not None or self._waiting:  # an error cannot follow what is owed first
            self._transport.abort()
            return
        self._waiting.clear()
        self._body.clear()
        self._current = exchange = self._exchange(http_1_1=True, keep_alive=False)
        self._server.handler.refuse(exchange, refusal)
        # Closing with unread input would reset the connection before the client has read this.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._server.connections.add(self)

    @property
    def _method(self) -> str:
        method = None if self._parser is None else self._parser.get_method()
        return (method or b"").decode("latin-1")

    @property
    def _path(self) -> str:
        return self._url.partition(b"?")[0].decode("latin-1")

    def _exchange(self, *, http_1_1: bool, keep_alive: bool) -> Exchange:
        return Exchange(
            responder=self,
            method=self._method,
            path=self._path,
            headers=self._headers,
            body=bytes(self._body),
            client=self._client,
            http_1_1=http_1_1,
            keep_alive=keep_alive and not self._server.draining,
            date=self._server.date,
            limits=self._limits,
            query=self._url.partition(b"?")[2].decode("latin-1"),
        )

    def _begin_message(self) -> None:
        self._in_head = True
        self._most_head_bytes = self._num_read  # as read, with what else came in its first read
        self._unparsed_bytes = 0  # as read since, while the head is not complete
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._max_body_bytes = self._limits.max_body_bytes
        self._body = bytearray()  # not a list: a body may come byte by byte

    def _check_size(self, num_bytes: int) -> None:
        limit = self._max_body_bytes
        if num_bytes > limit:
            whose = "are allowed" if limit == self._limits.max_body_bytes else "can fit the model"
            raise _bad(413, f"its body has {num_bytes} bytes or more; at most {limit} {whose}")

    def _head_bytes(self) -> int:
        """Return the size of the target and the headers; a colon, a space, an end for each."""
        headers = self._headers.items()
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)

    def _head_too_long(self) -> HttpRefusal:
        limit = self._limits.max_head_bytes
        return _bad(431, f"its head is over {limit} bytes, the most allowed")

    def _expire_in(self, seconds: float) -> None:
        self.expires_at = self._server.time() + seconds


def _bad(status: int, what: str) -> HttpRefusal:
    return HttpRefusal(status, HeadwayError(Code.INVALID_ARGUMENT, f"the request: {what}"))
