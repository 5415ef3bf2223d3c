"""What the predictor's shell refuses, over real gRPC and with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from protos import predictor_pb2, predictor_pb2_grpc
from services.predictor import __main__ as predictor
from services.predictor.config import PredictorConfig
from services.runtime.channel import open_channel
from services.runtime.clock import Clock
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Store


@asynccontextmanager
async def serving(
    config: PredictorConfig,
) -> AsyncIterator[predictor_pb2_grpc.PredictorAsyncStub]:
    store = await Store.connect(config.store, config.cluster)
    runtime = Runtime(config, Clock(), store, GrpcServer(config), get_logger())
    await predictor.build(runtime)
    runtime.address = await runtime.server.start()
    try:
        async with open_channel(runtime.address, config) as channel:
            yield predictor_pb2_grpc.PredictorStub(channel)
    finally:
        await runtime.server.stop(0)
        await store.close()


@pytest.mark.parametrize(
    ("prompts", "outputs", "value", "limit"),
    [
        ([5, 6], [1], "1", "2"),
        ([2**31], [1], "2147483648", "2147483647"),
        ([1], [2**32 - 1], "4294967295", "2147483647"),
        ([1] * 10_001, [1] * 10_001, "10001", "10000"),
    ],
    ids=["unequal", "prompt-too-long", "output-too-long", "too-many"],
)
async def test_a_refusal_names_the_value_and_the_limit_and_nothing_is_learned(
    store_url: str, cluster: str, prompts: list[int], outputs: list[int], value: str, limit: str
) -> None:
    async with serving(PredictorConfig(store=store_url, cluster=cluster)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Observe(
                predictor_pb2.ObserveRequest(
                    model="m", num_prompt_tokens=prompts, num_output_tokens=outputs
                )
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        said = refused.value.details() or ""
        assert value in said
        assert limit in said
        table = await stub.GetTable(predictor_pb2.GetTableRequest(model="m"))
        assert sum(table.num_samples) == 0


async def test_a_full_call_is_learned(store_url: str, cluster: str) -> None:
    async with serving(PredictorConfig(store=store_url, cluster=cluster)) as stub:
        observed = await stub.Observe(
            predictor_pb2.ObserveRequest(
                model="m", num_prompt_tokens=[9000] * 10_000, num_output_tokens=[7] * 10_000
            )
        )
        assert observed.num_observed == 10_000
        table = await stub.GetTable(predictor_pb2.GetTableRequest(model="m"))
        assert (table.num_samples[-1], table.mean_output_tokens[-1]) == (10_000, 7.0)
