"""The token pacer as clients meet it: a reader's pace, an opt-out, and what is measured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import BadRequestError

from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from tests.fakes.gateway_harness import Cluster, cluster

ANSWER = "x" * 60
PACED = "headway_gateway_paced_tokens"


@pytest.fixture
async def pacing(tmp_path: Path, store_url: str) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, store_url, preset="pascal", set="pacing.tpot=0.02") as found:
        yield found


async def read(running: Cluster, text: str, **options: object) -> list[float]:
    """Instants of the chunks that brought text."""
    stream = await running.openai().chat.completions.create(  # type: ignore[call-overload]  # options vary
        model="tiny", messages=[{"role": "user", "content": text}], stream=True, **options
    )
    return [
        time.monotonic()
        async for chunk in stream
        if chunk.choices and chunk.choices[0].delta.content
    ]


async def test_answering_tokens_are_paced_and_reasoning_is_not(pacing: Cluster) -> None:
    await read(pacing, f"<think>{'y' * 200}</think>")
    assert (await pacing.metrics())[PACED] == 0
    await read(pacing, f"<think>hm</think>{ANSWER}")
    metrics = await pacing.metrics()
    assert metrics[PACED] > 0
    assert metrics["headway_gateway_tokens_in_hand"] == 0
    assert metrics["headway_gateway_ttfat_seconds_count"] == 2
    assert metrics["headway_gateway_reasoning_tokens_total"] >= 200
    assert metrics["headway_gateway_qoe_count"] >= 1


@pytest.mark.parametrize(
    "options",
    [
        {"extra_body": {"headway": {"pacing": False}}},
        {"extra_headers": {"x-headway-pacing": "off"}},
        {"stop": ["never said"]},
    ],
)
async def test_pacing_can_be_switched_off_for_a_request(
    pacing: Cluster, options: dict[str, object]
) -> None:
    await read(pacing, f"<think>hm</think>{ANSWER}", **options)
    assert (await pacing.metrics())[PACED] == 0


async def test_who_does_not_stream_is_not_paced_and_has_no_qoe(pacing: Cluster) -> None:
    await pacing.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": ANSWER}]
    )
    metrics = await pacing.metrics()
    assert (metrics[PACED], metrics["headway_gateway_qoe_count"]) == (0, 0)
    assert metrics["headway_gateway_ttfat_seconds_count"] == 1


async def test_a_grpc_client_may_switch_pacing_off(pacing: Cluster) -> None:
    request = gateway_pb2.GenerateRequest(model="tiny", prompt=ANSWER)
    request.sampling.max_tokens = len(ANSWER)
    async with open_channel(pacing.grpc_address, ServiceConfig(), ServiceRole.GATEWAY) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        request.disable_pacing = True
        assert len([reply async for reply in stub.Generate(request)]) > 1
        assert (await pacing.metrics())[PACED] == 0
        request.disable_pacing = False
        assert len([reply async for reply in stub.Generate(request)]) > 1
    assert (await pacing.metrics())[PACED] > 0


async def test_what_is_no_option_of_ours_is_refused(pacing: Cluster) -> None:
    for ours in ({"pacing": "off"}, {"pace": False}, "off"):
        with pytest.raises(BadRequestError, match="headway"):
            await read(pacing, "a", extra_body={"headway": ours})
