"""What a worker's process is: the service, or a share of another process's model."""

from __future__ import annotations

from protos import standby_pb2_grpc, worker_pb2_grpc
from services.runtime.config import load_config
from services.runtime.service import Runtime, run_service
from services.worker.config import WorkerConfig
from services.worker.engine.model.tensor_parallel import is_follower
from services.worker.loading import follow
from services.worker.service import WorkerService


async def build(runtime: Runtime[WorkerConfig]) -> WorkerService:
    """The service, its RPCs registered."""
    service = WorkerService(runtime)
    runtime.server.add(
        lambda server: worker_pb2_grpc.add_WorkerServicer_to_server(service, server),
        "headway.v1.Worker",
    )
    standby = service.standby
    if standby is not None:
        runtime.server.add(
            lambda server: standby_pb2_grpc.add_StandbyServicer_to_server(standby, server),
            "headway.v1.Standby",
        )
    return service


def main() -> None:
    """As the command line and torchrun say."""
    config = load_config(WorkerConfig)
    if is_follower():
        follow(config)
    else:
        run_service(config, build)
