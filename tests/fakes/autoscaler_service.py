"""An autoscaler that serves over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.autoscaler import service as autoscaler
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService
from services.runtime.clock import Clock
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Store


@asynccontextmanager
async def served(config: AutoscalerConfig) -> AsyncIterator[tuple[AutoscalerService, str]]:
    store = await Store.connect(config.store, config.cluster)
    runtime = Runtime(config, Clock(), store, GrpcServer(config), get_logger())
    service = await autoscaler.build(runtime)
    address = await runtime.server.start()
    try:
        yield service, address
    finally:
        await service.stop()
        await runtime.server.stop(0)
        await store.close()


async def decided(service: AutoscalerService) -> None:
    await service.start()
    async with asyncio.timeout(60):
        while service.decisions.newest is None:
            await asyncio.sleep(0.01)
