"""``python -m services.autoscaler``: one autoscaler."""

from __future__ import annotations

from protos import autoscaler_pb2_grpc, externalscaler_pb2_grpc
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.keda import KedaScaler
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
    config = runtime.config
    keda = KedaScaler(
        service.decisions,
        config.model_name,
        runtime.clock.now,
        staleness=config.interval + config.staleness,
    )
    runtime.server.add(
        lambda server: externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(keda, server),
        "externalscaler.ExternalScaler",
    )
    return service


if __name__ == "__main__":
    run_service(load_config(AutoscalerConfig), build)
