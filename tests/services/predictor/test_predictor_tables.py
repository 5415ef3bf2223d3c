"""Length tables over real gRPC and with a real store: what is learned, what is refused."""

from __future__ import annotations

import grpc
import pytest

from protos import predictor_pb2
from services.predictor.config import PredictorConfig
from tests.fakes.predictor_rig import serving


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


async def test_a_table_tells_the_mean_of_what_was_learned(store_url: str, cluster: str) -> None:
    async with serving(PredictorConfig(store=store_url, cluster=cluster)) as stub:
        observed = predictor_pb2.ObserveRequest(
            model="m", num_prompt_tokens=[5, 6], num_output_tokens=[10, 20]
        )
        assert (await stub.Observe(observed)).num_observed == 2
        table = await stub.GetTable(predictor_pb2.GetTableRequest(model="m"))
        assert table.mean_output_tokens[0] == 15.0
        assert len(table.mean_output_tokens) == len(table.bucket_upper_bounds) + 1
