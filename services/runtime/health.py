"""``python -m services.runtime.health HOST:PORT ROLE``: exit 0 if the gRPC service serves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headway.errors import HeadwayError
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole, listed


async def is_serving(
    address: str, config: ServiceConfig, role: ServiceRole, *, within: float
) -> bool:
    """Return whether the service at ``address`` is serving; it has ``within`` s to answer."""
    async with open_channel(address, config, role) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=within
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def main(argv: Sequence[str]) -> int:
    """Return 0 if the service is serving, 1 if not, 2 for wrong arguments."""
    if len(argv) != 2 or argv[1] not in list(ServiceRole):
        roles = listed(ServiceRole)
        usage = f"usage: python -m services.runtime.health HOST:PORT ROLE, one of {roles}"
        print(usage, file=sys.stderr)  # noqa: T201
        return 2
    config = ServiceConfig(service_id="health")
    try:
        serves = asyncio.run(is_serving(argv[0], config, ServiceRole(argv[1]), within=2.0))
    except HeadwayError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 2
    return 0 if serves else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
