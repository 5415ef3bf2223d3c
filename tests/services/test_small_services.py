"""Predictor and autoscaler over real gRPC, with a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from protos import autoscaler_pb2, autoscaler_pb2_grpc, predictor_pb2, predictor_pb2_grpc
from services.autoscaler import service as autoscaler
from services.autoscaler.config import AutoscalerConfig
from services.predictor import service as predictor
from services.predictor.config import PredictorConfig
from services.runtime.channel import open_channel
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Store


@asynccontextmanager
async def serving(
    config: Any, build: Callable[[Any], Awaitable[Any]]
) -> AsyncIterator[tuple[grpc.aio.Channel, Store]]:
    store = await Store.connect(config.store, config.cluster)
    server = GrpcServer(config)
    runtime: Runtime[ServiceConfig] = Runtime(config, Clock(), store, server, get_logger())
    service = await build(runtime)
    runtime.address = await server.start()
    await service.start()
    async with open_channel(runtime.address, config, ServiceRole.PREDICTOR) as channel:
        yield channel, store
    await service.stop()
    await server.stop(0)
    await store.close()


async def test_the_predictor_learns_and_tells(store_url: str, cluster: str) -> None:
    config = PredictorConfig(store=store_url, cluster=cluster)
    async with serving(config, predictor.build) as (channel, _):
        stub = predictor_pb2_grpc.PredictorStub(channel)
        observed = predictor_pb2.ObserveRequest(
            model="m", num_prompt_tokens=[5, 6], num_output_tokens=[10, 20]
        )
        assert (await stub.Observe(observed)).num_observed == 2
        table = await stub.GetTable(predictor_pb2.GetTableRequest(model="m"))
        assert table.mean_output_tokens[0] == 15.0
        assert len(table.mean_output_tokens) == len(table.bucket_upper_bounds) + 1


async def test_the_predictor_refuses_unequal_arrays(store_url: str, cluster: str) -> None:
    config = PredictorConfig(store=store_url, cluster=cluster)
    async with serving(config, predictor.build) as (channel, _):
        stub = predictor_pb2_grpc.PredictorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Observe(predictor_pb2.ObserveRequest(model="m", num_prompt_tokens=[5]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_autoscaler_publishes_its_targets(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster, num_prefill=2, interval=0.05)
    async with serving(config, autoscaler.build) as (channel, store):
        stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
        report = autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=4.0)
        await stub.ReportRates(report)
        async with asyncio.timeout(60):
            while "4.00 requests/s" not in (await store.read_targets() or {}).get("reason", ""):
                await asyncio.sleep(0.01)
        targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
        assert (targets.num_prefill, targets.policy) == (2, "fixed")


async def test_the_autoscaler_runs_any_policy_of_the_registry(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(
        store=store_url,
        cluster=cluster,
        policy="scaling=tokenscale",
        set="scaling.min_prefill=2,scaling.min_decode=3,scaling.max_decode=10",
        interval=0.05,
    )
    async with serving(config, autoscaler.build) as (channel, _):
        stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
        deadline = asyncio.get_running_loop().time() + 30
        while True:
            targets = await stub.GetTargets(autoscaler_pb2.GetTargetsRequest())
            if targets.num_decode or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        assert (targets.num_prefill, targets.num_decode) == (2, 3)
        assert "holding" in targets.reason


async def test_the_autoscaler_refuses_rates_that_are_none(store_url: str, cluster: str) -> None:
    config = AutoscalerConfig(store=store_url, cluster=cluster)
    async with serving(config, autoscaler.build) as (channel, _):
        stub = autoscaler_pb2_grpc.AutoscalerStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReportRates(
                autoscaler_pb2.RateReport(gateway_id="g", requests_per_s=float("nan"))
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
