"""One HTTP request and its response, and the limits of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, Protocol

from headway.errors import HeadwayError


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds.

    ``max_unsent_bytes`` may wait for a client that reads slowly; beyond that it is cut off.
    ``head_timeout`` and ``body_timeout`` bound a request's whole head and body,
    ``idle_timeout`` the silence between requests, ``answer_timeout`` one answer.
    """

    max_body_bytes: int = 4 * 2**20
    max_head_bytes: int = 64 * 2**10
    max_unsent_bytes: int = 2**20
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    answer_timeout: float = 630.0


class HttpRefusal(Exception):  # noqa: N818 (it is an answer, as HeadwayError is)
    """A refusal with a status, and perhaps a code, of HTTP's own; ``allow``: methods by comma."""

    def __init__(
        self, status: int, error: HeadwayError, code: str | None = None, allow: str = ""
    ) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.code = code
        self.allow = allow


class HttpCaller(NamedTuple):
    """The client of a request, and the longest body that may be of use to it."""

    client: str
    """The name that bounds count it by: a key's, or an address."""
    max_body_bytes: int = 2**63


class Responder(Protocol):
    """The connection as an exchange sees it."""

    def send(self, data: bytes, *, last: bool) -> None:
        """Send bytes of the response; ``last`` ends it."""

    def cut_off_if_unread(self, limit: int) -> None:
        """Drop a client that has left over ``limit`` bytes unread."""

    def abort(self) -> None:
        """Drop the client at once."""

    @property
    def is_read_slowly(self) -> bool:
        """True while the client leaves more than a few bytes unread."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A whole request, and the means to answer it: ``respond``, or ``start`` and ``write``.

    ``on_gone`` is called if the client leaves before the response has ended. Calls after the end,
    or to a client that has left, do nothing.
    """

    responder: Responder
    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    client: str
    http_1_1: bool
    keep_alive: bool
    date: bytes
    limits: HttpLimits
    query: str = ""
    """The query behind the path's question mark, as it came."""
    on_gone: Callable[[], None] | None = None
    started: bool = False
    ended: bool = False
    _extra: list[tuple[str, str]] = field(default_factory=list)

    def header(self, name: str) -> str:
        """Return a request header's value, "" without one."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def add_header(self, name: str, value: str) -> None:
        """Send this header with the response."""
        self._extra.append((name, value))

    def respond(self, status: int, content_type: str, body: bytes) -> None:
        """Send the whole response."""
        if self.started:
            return
        self.started = self.ended = True
        self.on_gone = None  # it refers to the reply, which refers to this
        head = self._head(status, content_type, b"content-length: %d\r\n" % len(body))
        self.responder.send(head if self.method == "HEAD" else head + body, last=True)

    def start(self, status: int, content_type: str) -> None:
        """Begin a response of unknown length."""
        if self.started:
            return
        self.started = True
        self.keep_alive = self.keep_alive and self.http_1_1
        framing = b"transfer-encoding: chunked\r\n" if self.http_1_1 else b""
        self.responder.send(self._head(status, content_type, framing), last=False)

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send some of a started response; cut off a client that does not read."""
        if self.ended:
            return
        if self.http_1_1:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += b"0\r\n\r\n"
        if last:
            self.ended, self.on_gone = True, None
        self.responder.send(data, last=last)
        if not last:
            self.responder.cut_off_if_unread(self.limits.max_unsent_bytes)

    def abort(self) -> None:
        """Drop a client that cannot be answered: better than one that waits for ever."""
        if not self.ended:
            self.responder.abort()
            self.gone()

    @property
    def is_read_slowly(self) -> bool:
        """True while the client leaves more than a few bytes of the response unread."""
        return self.responder.is_read_slowly

    def gone(self) -> None:
        """End the exchange because the client left; the connection calls it."""
        if not self.ended:
            self.ended = True
            on_gone, self.on_gone = self.on_gone, None
            if on_gone is not None:
                on_gone()

    def _head(self, status: int, content_type: str, framing: bytes) -> bytes:
        extra = b"".join(b"%b: %b\r\n" % (k.encode(), v.encode()) for k, v in self._extra)
        closing = b"" if self.keep_alive and self.http_1_1 else _connection(self.keep_alive)
        return b"%b%bcontent-type: %b\r\n%b%b%b\r\n" % (
            _status_line(status),
            self.date,
            content_type.encode(),
            framing,
            extra,
            closing,
        )


class Handler(Protocol):
    """The object that answers an HTTP server's requests."""

    def screen(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: str
    ) -> HttpCaller:
        """Check a request's head; HttpRefusal where its body need not be read."""

    def serve(self, exchange: Exchange) -> None:
        """Answer a whole request, now or later."""

    def refuse(self, exchange: Exchange, refusal: HttpRefusal) -> None:
        """Answer a request that is not served."""

    def cut_off(self) -> None:
        """Count a client that was cut off because it does not read."""


class SideRoutes(Protocol):
    """Routes beside the API: the console's."""

    def has(self, path: str) -> bool:
        """Return whether a path is one of them."""

    def is_get(self, path: str) -> bool:
        """Return whether a path is one of them and takes GET, not POST."""

    def is_open(self, path: str) -> bool:
        """Return whether a path is served without a key."""

    def screen(self, path: str, name: str, address: str) -> None:
        """Refuse (HttpRefusal) a caller by the name of its key, "" for none, and its address."""

    def serve(self, exchange: Exchange) -> None:
        """Answer a request for one of them."""


def _connection(keep_alive: bool) -> bytes:
    return b"connection: keep-alive\r\n" if keep_alive else b"connection: close\r\n"


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


_STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
