"""KEDA's external scaler, asked as KEDA asks: a poll, a stream, and the HPA's arithmetic."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from protos import autoscaler_pb2, autoscaler_pb2_grpc, externalscaler_pb2, externalscaler_pb2_grpc
from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.service import AutoscalerService
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from tests.fakes.autoscaler_service import decided, served

TOLERANCE = 0.1  # the HPA's default


class Keda:
    """What KEDA and the HPA do with one ScaledObject's trigger."""

    def __init__(self, channel: grpc.aio.Channel, **metadata: str) -> None:
        self.stub: externalscaler_pb2_grpc.ExternalScalerAsyncStub
        self.stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        self.reference = externalscaler_pb2.ScaledObjectRef(
            name="headway", namespace="serving", scalerMetadata=metadata
        )

    async def poll(self, num_replicas: int) -> int:
        """One HPA sync: the replicas that it sets next."""
        specs = (await self.stub.GetMetricSpec(self.reference)).metricSpecs
        asked = externalscaler_pb2.GetMetricsRequest(
            scaledObjectRef=self.reference, metricName=specs[0].metricName
        )
        (value,) = (await self.stub.GetMetrics(asked)).metricValues
        assert value.metricName == specs[0].metricName
        assert (value.metricValue, specs[0].targetSize) == (
            value.metricValueFloat,
            specs[0].targetSizeFloat,
        )
        ratio = value.metricValueFloat / (specs[0].targetSizeFloat * max(num_replicas, 1))
        if num_replicas and abs(1 - ratio) <= TOLERANCE:
            return num_replicas
        return math.ceil(value.metricValueFloat / specs[0].targetSizeFloat)


@pytest.fixture
def config(store_url: str, cluster: str) -> AutoscalerConfig:
    return AutoscalerConfig(
        store=store_url, cluster=cluster, num_prefill=3, num_decode=7, interval=0.05, model_name="m"
    )


@asynccontextmanager
async def asking(
    config: AutoscalerConfig, **metadata: str
) -> AsyncIterator[tuple[AutoscalerService, Keda]]:
    """An autoscaler, and what KEDA asks it by a trigger."""
    async with (
        served(config) as (service, address),
        open_channel(address, config, ServiceRole.AUTOSCALER) as channel,
    ):
        yield service, Keda(channel, **metadata)


async def test_the_hpas_arithmetic_gives_our_number(config: AutoscalerConfig) -> None:
    for role, number in (("prefill", 3), ("decode", 7)):
        async with asking(config, role=role, model="m") as (service, keda):
            await decided(service)
            assert (await keda.stub.IsActive(keda.reference)).result
            for num_replicas in range(9):
                assert await keda.poll(num_replicas) == number


async def test_a_role_that_nobody_wants_is_not_active(config: AutoscalerConfig) -> None:
    async with asking(config, role="convertible") as (service, keda):
        await decided(service)
        assert not (await keda.stub.IsActive(keda.reference)).result
        assert await keda.poll(1) == 0


async def test_before_a_decision_there_is_a_metric_and_no_value(config: AutoscalerConfig) -> None:
    async with asking(config, role="decode") as (_, keda):
        assert len((await keda.stub.GetMetricSpec(keda.reference)).metricSpecs) == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await keda.poll(1)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stale_decision_is_no_value(config: AutoscalerConfig) -> None:
    config = config.model_copy(update={"staleness": 0.2})
    async with asking(config, role="decode") as (service, keda):
        await decided(service)
        await service.stop()

        async def poll_on() -> None:
            while True:
                await keda.poll(1)
                await asyncio.sleep(0.02)

        async with asyncio.timeout(60):
            with pytest.raises(grpc.aio.AioRpcError, match="no fresh decision"):
                await poll_on()


@pytest.mark.parametrize(
    ("metadata", "said", "code"),
    [
        ({"role": "decoder"}, "scalerMetadata role is 'decoder'", "INVALID_ARGUMENT"),
        ({}, "scalerMetadata role is ''", "INVALID_ARGUMENT"),
        ({"role": "decode", "model": "other"}, "this autoscaler is for 'm'", "NOT_FOUND"),
    ],
)
async def test_a_trigger_that_makes_no_sense_is_told_so(
    config: AutoscalerConfig, metadata: dict[str, str], said: str, code: str
) -> None:
    async with asking(config, **metadata) as (service, keda):
        await decided(service)
        for call in (keda.stub.GetMetricSpec, keda.stub.IsActive):
            with pytest.raises(grpc.aio.AioRpcError, match=said) as refused:
                await call(keda.reference)
            assert refused.value.code() is grpc.StatusCode[code]


async def test_the_stream_tells_at_once_and_then_only_changes(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(
        store=store_url,
        cluster=cluster,
        interval=0.05,
        policy="scaling=blitzscale",
        set="scaling.window=0.1",
        min_decode=0,
        scale_down_delay=0.0,
    )
    async with (
        served(config) as (service, address),
        open_channel(address, config, ServiceRole.AUTOSCALER) as channel,
    ):
        await decided(service)
        gateway: autoscaler_pb2_grpc.AutoscalerAsyncStub
        gateway = autoscaler_pb2_grpc.AutoscalerStub(channel)
        keda = Keda(channel, role="decode")
        stream = aiter(keda.stub.StreamIsActive(keda.reference))
        async with asyncio.timeout(20):
            assert not (await anext(stream)).result
            for num_requests in (50, 0):
                pool = autoscaler_pb2.PoolLoad(num_ready=1, num_requests=num_requests)
                await gateway.ReportFleet(autoscaler_pb2.FleetReport(decode=pool))
                assert (await anext(stream)).result is (num_requests > 0)
