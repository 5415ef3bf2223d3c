"""An autoscaler that serves over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from protos import autoscaler_pb2_grpc
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService, build
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.runtime.service import Runtime
from tests.fakes.running import running

Build = Callable[[Runtime[AutoscalerConfig]], Awaitable[AutoscalerService]]


@asynccontextmanager
async def served(config: AutoscalerConfig) -> AsyncIterator[tuple[AutoscalerService, str]]:
    """One that listens and has not started, and its address."""
    async with running(config, build, starts=False) as (service, runtime):
        yield service, runtime.address


@asynccontextmanager
async def asked(
    config: AutoscalerConfig, make: Build = build, *, starts: bool = True
) -> AsyncIterator[tuple[AutoscalerService, autoscaler_pb2_grpc.AutoscalerAsyncStub]]:
    """One that has started, and a stub to talk to it."""
    async with (
        running(config, make, starts=starts) as (service, runtime),
        open_channel(runtime.address, config, ServiceRole.AUTOSCALER) as channel,
    ):
        yield service, autoscaler_pb2_grpc.AutoscalerStub(channel)


async def decided(service: AutoscalerService) -> None:
    await service.start()
    async with asyncio.timeout(60):
        while service.decisions.newest is None:
            await asyncio.sleep(0.01)
