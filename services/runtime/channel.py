"""gRPC channels to other services."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import cache
from pathlib import Path

import grpc

from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole, server_name
from services.runtime.identity.secret import default_secret_file, load_secret, user_agent
from services.runtime.identity.tls_files import TlsFiles, TlsSource, channel_credentials

# A stopped peer is noticed in 4 s only with the ping timeout as well; kill -9 at once.
KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
)
_CONNECTS_WITHIN = "grpc.min_reconnect_backoff_ms"
"""An attempt to connect ends after it, and a busy machine needs more than 0.1 s for TLS."""

_LAST_CALLS = 60.0
"""Seconds that running calls have left on a channel that is replaced."""


def cluster_secret(config: ServiceConfig) -> bytes:
    """Return the secret that services without certificates share."""
    return load_secret(config.cluster_secret_file or default_secret_file(config.cluster))


def tls_source(config: ServiceConfig, *, for_clients: bool = False) -> TlsSource | None:
    """Return the TLS files; None without TLS. ``for_clients``: those of the clients' server."""
    if config.tls_cert is None or config.tls_key is None or config.tls_ca is None:
        return None
    authority = config.tls_client_ca if for_clients else None
    return _source(config.tls_cert, config.tls_key, authority or config.tls_ca)


@cache
def _source(certificate: Path, key: Path, authority: Path) -> TlsSource:
    return TlsSource(certificate, key, authority)


def open_channel(address: str, config: ServiceConfig, role: ServiceRole) -> grpc.aio.Channel:
    """Open a new channel to a server of that role. The caller closes it.

    With certificates the server's has to name the role; without, calls carry a proof of the
    cluster's secret.
    """
    tls = tls_source(config)
    if tls is None:
        agent = user_agent(cluster_secret(config), address)
        options = (*_OPTIONS, (_CONNECTS_WITHIN, 100), ("grpc.primary_user_agent", agent))
        return grpc.aio.insecure_channel(address, options=options)
    name = server_name(config.cluster, role)
    options = (*_OPTIONS, (_CONNECTS_WITHIN, 1000), ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, channel_credentials(tls.read()), options=options)


class Channels:
    """Channels to servers of one role, kept by address; replaced when the TLS files change."""

    def __init__(self, config: ServiceConfig, role: ServiceRole) -> None:
        self._config = config
        self._role = role
        self._open: dict[str, tuple[TlsFiles | None, grpc.aio.Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def to(self, address: str) -> grpc.aio.Channel:
        """Return the channel to an address."""
        tls = tls_source(self._config)
        files = None if tls is None else tls.read()
        known = self._open.get(address)
        if known is not None and known[0] is files:
            return known[1]
        if known is not None:
            closing = asyncio.create_task(known[1].close(_LAST_CALLS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        channel = open_channel(address, self._config, self._role)
        self._open[address] = (files, channel)
        return channel

    async def close(self, *, keep: Collection[str] = ()) -> None:
        """Close the channels, but those to the addresses in ``keep``."""
        for address in [each for each in self._open if each not in keep]:
            await self._open.pop(address)[1].close()
