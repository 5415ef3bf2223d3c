"""``python -m services.gateway``: one gateway."""

from __future__ import annotations

from protos import gateway_pb2_grpc
from services.gateway.config import GatewayConfig
from services.gateway.service import GatewayService
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service


async def build(runtime: Runtime[GatewayConfig]) -> GatewayService:
    """The service, its RPCs registered."""
    service = GatewayService(runtime)
    runtime.server.add(
        lambda server: gateway_pb2_grpc.add_TokenSinkServicer_to_server(service.sink, server),
        "headway.v1.TokenSink",
    )
    runtime.server.add(
        lambda server: gateway_pb2_grpc.add_GatewayServicer_to_server(service.grpc_edge, server),
        "headway.v1.Gateway",
    )
    return service


if __name__ == "__main__":
    run_service(load_config(GatewayConfig), build)
