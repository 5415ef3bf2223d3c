"""The HTTP listener: accepts, sweeps what is slow, drains."""

from __future__ import annotations

import asyncio
import socket
import ssl
from email.utils import formatdate
from pathlib import Path

from services.gateway.bounds import ClientBounds
from services.gateway.http.connection import HttpConnection
from services.gateway.http.exchange import Handler, HttpLimits
from services.gateway.http.tls_listener import TlsListener, bound_sockets

_SWEEP_INTERVAL = 0.25
_BACKLOG = 1024
_UNSENT_SOCKET_BYTES = 2**18  # the kernel's share of what a slow reader may leave unread


class HttpServer:
    """A listener that passes whole requests to its handler."""

    def __init__(self, handler: Handler, limits: HttpLimits, bounds: ClientBounds) -> None:
        self.handler = handler
        self.limits = limits
        self.bounds = bounds
        self.num_turned_away = 0
        self.connections: set[HttpConnection] = set()
        self.draining = False
        self.date = b""
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._listener: asyncio.Server | TlsListener | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; return the address it really listens on. OSError where it is taken."""
        self._sweep()
        if tls is None:
            self._listener = await self._loop.create_server(
                lambda: HttpConnection(self),
                host,
                port,
                backlog=_BACKLOG,
                reuse_port=False,  # two servers on one port would share it silently
            )
        else:
            self._listener = TlsListener(
                await bound_sockets(host, port, _BACKLOG),
                tls,
                lambda made: HttpConnection(self, made),
                self.bounds.connections,
                self.limits.head_timeout,
            )
        for listening in self._listener.sockets:
            # Inherited by what it accepts.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_SOCKET_BYTES)
        bound_host, bound_port = self._listener.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    async def drain(self, patience: float) -> None:
        """Accept nothing more; wait ``patience`` seconds for the responses that are owed."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        deadline = self.time() + patience
        while True:
            for connection in list(self.connections):
                connection.close_if_idle()
            if not any(c.busy for c in self.connections) or self.time() >= deadline:
                return
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Close the listener and cut what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        """Expire slow connections and count what is unread; one timer serves them all."""
        now = self.time()
        self.date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        for connection in list(self.connections):
            if connection.expires_at is not None and connection.expires_at <= now:
                connection.expire()
            if connection.num_unsent:
                connection.count_unsent()
        self._timer = self._loop.call_later(_SWEEP_INTERVAL, self._sweep)


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Load a server's TLS; OSError or ssl.SSLError where the files do not serve."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return context
