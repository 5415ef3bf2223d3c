"""gRPC channels to other services."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from headway.errors import Code, HeadwayError
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


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The contents of the three files of mTLS (PEM)."""

    certificate: bytes
    key: bytes
    authority: bytes


def tls_files(config: ServiceConfig) -> TlsFiles | None:
    """Read the TLS files; None without TLS, FAILED_PRECONDITION if one cannot be read.

    They are read on every call, so clients pick up renewed certificates without a restart.
    """
    if config.tls_cert is None or config.tls_key is None or config.tls_ca is None:
        return None
    try:
        return TlsFiles(
            config.tls_cert.read_bytes(), config.tls_key.read_bytes(), config.tls_ca.read_bytes()
        )
    except OSError as error:
        message = f"cannot read {error.filename} ({error.strerror}): see --tls-cert, -key and -ca"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Return the credentials of a client (mTLS)."""
    return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)


def open_channel(address: str, config: ServiceConfig) -> grpc.aio.Channel:
    """Open a new channel, with mTLS if configured. The caller closes it."""
    tls = tls_files(config)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=_OPTIONS)
