"""``python -m services.runtime.health HOST:PORT``: exit 0 if the gRPC service serves."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.channel import channel_credentials, tls_files
from services.runtime.config import ServiceConfig


def is_serving(address: str, timeout: float = 2.0) -> bool:
    """Return whether the service at ``address`` is serving (mTLS as configured by HEADWAY_*)."""
    tls = tls_files(ServiceConfig())
    if tls is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, channel_credentials(tls))
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout
            )
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def main(argv: Sequence[str]) -> int:
    """Return 0 if the service is serving, 1 if not, 2 for wrong arguments."""
    if len(argv) != 1:
        print("usage: python -m services.runtime.health HOST:PORT", file=sys.stderr)  # noqa: T201
        return 2
    return 0 if is_serving(argv[0]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
