"""Adapters of a model at every edge: a name of their own in front, one model behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headway.errors import HeadwayError
from protos import gateway_pb2, gateway_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.gateway.config import GatewayConfig
from services.runtime.config import read_config
from tests.fakes.gateway_harness import Cluster, cluster
from tests.fakes.tiny_model import write_model

NAMES = ("tiny", "sql", "org/poems:1")
LORA = {"sql": "there/sql", "org/poems:1": "there/poems"}
SAID = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def running(tmp_path: Path, store_url: str) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, store_url, lora=LORA) as found:
        yield found


async def test_models_and_adapters_are_listed_as_vllm_lists_them(running: Cluster) -> None:
    listed = [model.model_dump() async for model in running.openai().models.list()]
    told = [(each["id"], each["root"], each["parent"]) for each in listed]
    assert told == [
        ("tiny", "tiny", None),
        ("sql", "there/sql", "tiny"),
        ("org/poems:1", "there/poems", "tiny"),
    ]
    assert {each["max_model_len"] for each in listed} == {2048}
    one = await running.openai().models.retrieve("sql")
    assert (one.id, one.model_dump()["parent"]) == ("sql", "tiny")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 4}),
    ],
)
async def test_a_request_names_its_adapter(
    running: Cluster, path: str, body: dict[str, Any]
) -> None:
    async with running.http() as client:
        for name in NAMES:
            answer = await client.post(path, json={"model": name, **body})
            assert (answer.status_code, answer.json()["model"]) == (200, name)
    asked = [(request.model, request.adapter) for request in running.emulated.submitted]
    assert asked == [("tiny", ""), ("tiny", "sql"), ("tiny", "org/poems:1")]


async def test_grpc_and_kserve_name_it_too(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        call = gateway_pb2.GenerateRequest(model="sql", prompt="hi")
        assert [reply async for reply in stub.Generate(call, timeout=60)]
        kserve, pb = inference_pb2_grpc.GRPCInferenceServiceStub(channel), inference_pb2
        assert (await kserve.ModelReady(pb.ModelReadyRequest(name="sql"), timeout=60)).ready
        assert not (await kserve.ModelReady(pb.ModelReadyRequest(name="php"), timeout=60)).ready
        request = pb.ModelInferRequest(model_name="sql")
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"hi")
        assert (await kserve.ModelInfer(request, timeout=60)).model_name == "sql"
    assert [request.adapter for request in running.emulated.submitted] == ["sql", "sql"]


async def test_another_name_is_refused_with_those_that_are_served(running: Cluster) -> None:
    async with running.http() as client:
        answer = await client.post("/v1/completions", json={"model": "php", "prompt": "hi"})
        assert answer.status_code == 404
        assert "this gateway serves 'tiny', 'sql', 'org/poems:1'" in answer.text
        counted = await client.post("/tokenize", json={"model": "sql", "prompt": "abc"})
        assert counted.json()["max_model_len"] == 2048


async def test_the_log_of_a_life_names_what_was_asked_for(running: Cluster) -> None:
    async with running.http() as client:
        answer = await client.post("/v1/completions", json={"model": "sql", "prompt": "hi"})
        life = await client.get(f"/explain/{answer.headers['x-request-id']}")
    assert life.json()["life"]["model"] == "sql"


async def test_adapters_of_one_of_several_models_go_to_that_model(
    tmp_path: Path, store_url: str
) -> None:
    folders = [str(write_model(tmp_path / name)) for name in ("a", "b")]
    models = {"a": folders[0], "b": {"path": folders[1], "lora": {"sql": "there"}}}
    async with cluster(tmp_path, store_url, models=models) as found:
        async with found.http() as client:
            await client.post("/v1/completions", json={"model": "sql", "prompt": "hi"})
        request = found.emulated.submitted[-1]
        assert (request.model, request.adapter) == ("b", "sql")


def test_flags_name_them_one_by_one_or_as_json() -> None:
    for flags in (["--lora", "a=x", "--lora", "b=y/z"], ["--lora", '{"a": "x", "b": "y/z"}']):
        assert read_config(GatewayConfig, flags).lora == {"a": "x", "b": "y/z"}
    with pytest.raises(HeadwayError, match="--lora"):
        read_config(GatewayConfig, ["--lora", "a b=x"])


async def test_an_adapter_with_a_models_name_is_refused(tmp_path: Path, store_url: str) -> None:
    with pytest.raises(HeadwayError, match="lora is 'tiny'; it must be a name that no model"):
        async with cluster(tmp_path, store_url, lora={"tiny": "x"}):
            pass
