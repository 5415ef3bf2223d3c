"""gRPC channels to other services."""

from __future__ import annotations

import grpc

from services.runtime.config import ServiceConfig

# A stopped peer is noticed in 4 s only with the ping timeout as well; kill -9 at once.
KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, config: ServiceConfig) -> grpc.aio.Channel:
    """A channel of its own, with mTLS where it is configured. Close it."""
    if config.tls_cert is None or config.tls_key is None or config.tls_ca is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=config.tls_ca.read_bytes(),
        private_key=config.tls_key.read_bytes(),
        certificate_chain=config.tls_cert.read_bytes(),
    )
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
