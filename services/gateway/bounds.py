"""The bounds that the gateway's clients share, and the names that they are counted by."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from math import ceil
from urllib.parse import unquote

from headway.core.gateway.shares import Bound, Places
from services.gateway.auth import ADDRESS_CLIENT


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """The accounts of clients: connections by address, the others by key where there are keys."""

    connections: Bound
    buffered: Bound
    """Bytes that wait: bodies until they are read, answers until their client takes them."""
    places: Places

    @classmethod
    def of(
        cls,
        share: float,
        *,
        max_connections: int,
        max_buffered_bytes: int,
        max_waiting: int,
        max_open_requests: int,
        max_mask_seconds: float,
    ) -> ClientBounds:
        """Make the bounds from the gateway's options; one client may hold ``share`` of each."""
        waiting = Bound("requests without a token", max_waiting, share, "--max-waiting")
        opened = Bound("open requests", max_open_requests, share, "--max-open-requests")
        masks = Bound(
            "ms of grammars' masks",
            ceil(1000 * max_mask_seconds),
            share,
            "--max-mask-seconds",
            "fewer outputs, fewer tokens or a simpler grammar",
        )
        return cls(
            Bound("connections", max_connections, share, "--max-connections"),
            Bound("bytes waiting", max_buffered_bytes, share, "--max-buffered-bytes"),
            Places(waiting, opened, masks),
        )


def client_at(host: str) -> str:
    """Return the name of a client by its address: an IPv6 client has a network of 2^64 of them."""
    if ":" not in host:
        return f"{ADDRESS_CLIENT}{host}"
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return f"{ADDRESS_CLIENT}{address.ipv4_mapped}"
    return f"{ADDRESS_CLIENT}{ip_network((int(address), 64), strict=False)}"


def grpc_client(peer: str) -> str:
    """Return the name of a gRPC peer, which is written as ``ipv4:1.2.3.4:567``."""
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    return client_at(host) if kind in ("ipv4", "ipv6") else f"{ADDRESS_CLIENT}{kind}"
