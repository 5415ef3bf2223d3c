"""``python -m services.autoscaler``: one autoscaler."""

from __future__ import annotations

from protos import autoscaler_pb2_grpc
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service


async def build(runtime: Runtime[AutoscalerConfig]) -> AutoscalerService:
    """The service, its RPCs registered."""
    service = AutoscalerService(runtime)
    runtime.server.add(
        lambda server: autoscaler_pb2_grpc.add_AutoscalerServicer_to_server(service, server),
        "headway.v1.Autoscaler",
    )
    return service


if __name__ == "__main__":
    run_service(load_config(AutoscalerConfig), build)
