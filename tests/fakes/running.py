"""A service that runs inside a test, on a gRPC server and a store connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime, Service
from services.runtime.store import Store

C = TypeVar("C", bound=ServiceConfig)
S = TypeVar("S", bound=Service)


@asynccontextmanager
async def running(
    config: C,
    build: Callable[[Runtime[C]], Awaitable[S]],
    *,
    starts: bool = True,
    for_clients: bool = False,
) -> AsyncIterator[tuple[S, Runtime[C]]]:
    """Listen and start, unless the test starts it; stop everything at the end."""
    store = await Store.connect(config.store, config.cluster)
    server = GrpcServer(config, for_clients=for_clients)
    runtime: Runtime[C] = Runtime(config, Clock(config.clock_error), store, server, get_logger())
    service = await build(runtime)
    runtime.address = await server.start()
    try:
        if starts:
            await service.start()
        yield service, runtime
    finally:
        await service.stop()
        await server.stop(0.1)
        await store.close()
