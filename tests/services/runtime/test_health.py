"""gRPC health of services as they start: asked over real gRPC, while others rely on it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from headway.engine import Backend
from services.local.store import free_port
from services.runtime.channel import open_channel
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole
from services.runtime.log_lines import LogLines
from services.runtime.service import start
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import build as build_scheduler
from services.worker.config import WorkerConfig
from services.worker.servicer import build as build_worker
from tests.fakes.fake_engine import load_fake
from tests.fakes.worker_service import MODEL

PATIENCE = 60.0


async def test_a_worker_serves_once_its_model_is_loaded(store_url: str, cluster: str) -> None:
    may_load = threading.Event()

    def load(config: WorkerConfig) -> Backend:
        assert may_load.wait(PATIENCE)
        return load_fake(config)

    address = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"store": store_url, "cluster": cluster, "listen": address}
    config = WorkerConfig(
        service_id="w", model=str(MODEL), num_blocks=160, max_model_len=2048, **options
    )
    request = health_pb2.HealthCheckRequest(service="headway.v1.Worker")
    async with AsyncExitStack() as undo, asyncio.timeout(PATIENCE):
        starting = asyncio.create_task(
            start(config, partial(build_worker, load=load), undo, LogLines(None))
        )
        undo.callback(may_load.set)
        async with open_channel(address, config, ServiceRole.WORKER) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while_it_loads = await stub.Check(request, wait_for_ready=True)
            assert while_it_loads.status == health_pb2.HealthCheckResponse.NOT_SERVING
            may_load.set()
            await starting
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_scheduler_that_stands_by_serves(store_url: str, cluster: str) -> None:
    async with AsyncExitStack() as undo, asyncio.timeout(PATIENCE):
        leader = await _scheduler("scheduler-1", store_url, cluster, undo)
        while not leader.leads:
            await asyncio.sleep(0.01)
        standby = await _scheduler("scheduler-2", store_url, cluster, undo)
        assert leader.leads
        assert not standby.leads


async def _scheduler(service_id: str, store_url: str, cluster: str, undo: AsyncExitStack) -> Any:
    """A scheduler that serves, which its health says."""
    config = SchedulerConfig(service_id=service_id, store=store_url, cluster=cluster)
    runtime, service, _ = await start(config, build_scheduler, undo, LogLines(None))
    assert await is_serving(runtime.address, config, ServiceRole.SCHEDULER, within=PATIENCE)
    return service
