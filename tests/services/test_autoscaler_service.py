"""The autoscaler's shell, over real gRPC and with a real store: what it publishes and refuses."""

from __future__ import annotations

import asyncio
import math

import grpc
import pytest

from protos import autoscaler_pb2
from services.autoscaler.config import AutoscalerConfig
from services.runtime.clock import Clock
from services.runtime.store import Store
from tests.fakes.autoscaler_service import asked


async def test_a_report_before_the_start_is_told_to_come_again(
    store_url: str, cluster: str
) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster)
    async with asked(config, starts=False) as (service, stub):
        report = autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=1.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportRates(report)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await service.start()
        await stub.ReportRates(report)


@pytest.mark.parametrize("name", ["observed_at", "window", "output_tokens_per_s", "requests_per_s"])
@pytest.mark.parametrize("value", [math.nan, -1.0])
async def test_a_malformed_figure_is_refused_by_its_name(
    store_url: str, cluster: str, name: str, value: float
) -> None:
    async with asked(AutoscalerConfig(store=store_url, cluster=cluster)) as (_, stub):
        report = autoscaler_pb2.RateReport(gateway_id="g")
        setattr(report, name, value)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportRates(report)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert name in (refused.value.details() or "")


async def test_a_report_that_was_overtaken_changes_nothing(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster, interval=0.05)
    async with asked(config) as (_, stub):
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


async def test_targets_are_published(store_url: str, cluster: str, store: Store) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster, num_prefill=2, interval=0.05)
    async with asked(config) as (_, stub):
        report = autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=4.0)
        await stub.ReportRates(report)
        async with asyncio.timeout(60):
            while "4.00 requests/s" not in (await store.read_targets() or {}).get("reason", ""):
                await asyncio.sleep(0.01)
        targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
        assert (targets.num_prefill, targets.policy) == (2, "fixed")


async def test_any_policy_of_the_registry_runs(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(
        store=store_url,
        cluster=cluster,
        policy="scaling=tokenscale",
        set="scaling.min_prefill=2,scaling.min_decode=3,scaling.max_decode=10",
        interval=0.05,
    )
    async with asked(config) as (_, stub):
        deadline = asyncio.get_running_loop().time() + 30
        while True:
            targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
            if targets.num_decode or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        assert (targets.num_prefill, targets.num_decode) == (2, 3)
        assert "holding" in targets.reason
