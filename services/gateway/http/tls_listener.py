"""Accepting of TLS connections, which count by their address before they have shaken hands.

asyncio's own listener tells nobody of a connection until then. One address could take all files of
the process by connections that never say a word.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from headway.core.gateway.shares import Bound
from services.gateway.bounds import client_at
from services.runtime.essential import essential

_PAUSE = 0.1
"""Seconds until the next try, where the process may have no more files."""


class TlsListener:
    """A listener whose handshakes take places of ``bound``; it closes a connection too many."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext,
        make: Callable[[Callable[[], None]], asyncio.Protocol],
        bound: Bound,
        patience: float,
    ) -> None:
        """Listen at once on sockets that are bound.

        ``make`` makes the protocol of a connection; it calls what it is given once the connection
        is made. ``patience``: seconds for a handshake.
        """
        self.sockets = sockets
        self._tls = tls
        self._make = make
        self._bound = bound
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = [essential(self._accept(each), "TLS listener") for each in sockets]

    def close(self) -> None:
        """Accept nothing more; end the handshakes."""
        for task in (*self._accepting, *self._shaking):
            task.cancel()
        for each in self.sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, peer = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE)
                continue
            client = client_at(peer[0])
            if not self._bound.take(client):
                connection.close()
                continue
            shaking = self._loop.create_task(self._shake(connection, _Once(self._bound, client)))
            self._shaking.add(shaking)
            shaking.add_done_callback(self._shaking.discard)

    async def _shake(self, connection: socket.socket, place: _Once) -> None:
        try:
            await self._loop.connect_accepted_socket(
                partial(self._make, place.give_back),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._patience,
            )
        except OSError:  # no TLS, no trust, or no end
            connection.close()
        finally:
            place.give_back()


class _Once:
    """A place of a client, given back once."""

    def __init__(self, bound: Bound, client: str) -> None:
        self._bound, self._client = bound, client
        self._is_taken = True

    def give_back(self) -> None:
        """Give it back; a repeated call does nothing."""
        if self._is_taken:
            self._is_taken = False
            self._bound.give_back(self._client)


async def bound_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return listening sockets of all addresses of a host; OSError where one is taken.

    Addresses of a family that this machine has not are left out, unless there are no others.
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, *_, address in dict.fromkeys(infos):
            try:
                sockets.append(socket.socket(family, socket.SOCK_STREAM))
            except OSError as error:
                lacking = error
                continue
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sockets[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sockets[-1].setblocking(False)
            sockets[-1].bind(address)
            sockets[-1].listen(backlog)
    except OSError:
        for each in sockets:
            each.close()
        raise
    if lacking is not None and not sockets:
        raise lacking
    return sockets
