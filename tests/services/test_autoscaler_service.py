"""What the autoscaler's shell refuses, over real gRPC and with a real store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from protos import autoscaler_pb2, autoscaler_pb2_grpc
from services.autoscaler import service as autoscaler
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService
from services.runtime.channel import open_channel
from services.runtime.clock import Clock
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Store


@asynccontextmanager
async def listening(
    config: AutoscalerConfig,
) -> AsyncIterator[tuple[AutoscalerService, autoscaler_pb2_grpc.AutoscalerAsyncStub]]:
    """The service, its server listening but itself not started."""
    store = await Store.connect(config.store, config.cluster)
    runtime = Runtime(config, Clock(), store, GrpcServer(config), get_logger())
    service = await autoscaler.build(runtime)
    runtime.address = await runtime.server.start()
    try:
        async with open_channel(runtime.address, config, ServiceRole.AUTOSCALER) as channel:
            yield service, autoscaler_pb2_grpc.AutoscalerStub(channel)
    finally:
        await service.stop()
        await runtime.server.stop(0)
        await store.close()


async def test_a_report_before_the_start_is_told_to_come_again(
    store_url: str, cluster: str
) -> None:
    async with listening(AutoscalerConfig(store=store_url, cluster=cluster)) as (service, stub):
        report = autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=1.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportRates(report)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await service.start()
        await stub.ReportRates(report)


@pytest.mark.parametrize("name", ["observed_at", "window", "output_tokens_per_s"])
@pytest.mark.parametrize("value", [math.nan, -1.0])
async def test_a_malformed_figure_is_refused_by_its_name(
    store_url: str, cluster: str, name: str, value: float
) -> None:
    async with listening(AutoscalerConfig(store=store_url, cluster=cluster)) as (service, stub):
        await service.start()
        report = autoscaler_pb2.RateReport(gateway_id="g")
        setattr(report, name, value)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportRates(report)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert name in (refused.value.details() or "")


async def test_a_report_that_was_overtaken_changes_nothing(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster, interval=0.05)
    async with listening(config) as (service, stub):
        await service.start()
        for observed_at, rate in ((20.0, 4.0), (19.0, 9.0)):
            await stub.ReportRates(
                autoscaler_pb2.RateReport(
                    gateway_id="g", observed_at=observed_at, window=1.0, requests_per_s=rate
                )
            )
        reported_at = Clock().now()
        async with asyncio.timeout(60):
            targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
            while targets.decided_at <= reported_at:
                await asyncio.sleep(0.01)
                targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
        assert "4.00 requests/s" in targets.reason
