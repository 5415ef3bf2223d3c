"""Several models behind one gateway: each has its own name, template, limits and workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from headway.errors import HeadwayError
from protos import inference_pb2, inference_pb2_grpc, predictor_pb2, predictor_pb2_grpc
from services.gateway import feedback
from services.gateway.config import GatewayConfig
from services.runtime.config import ServiceConfig, read_config
from services.runtime.server import GrpcServer
from services.runtime.store import Member
from tests.fakes.gateway_harness import Cluster, cluster, until
from tests.fakes.tiny_model import write_model

SHORT = 64
DOES = ("prefills", "decodes")
TEMPLATE = "{%- for m in messages -%}{{- '[' + m.content + ']' -}}{%- endfor -%}"


@pytest.fixture
async def both(tmp_path: Path, store_url: str) -> AsyncIterator[Cluster]:
    """A gateway of ``tiny`` and of ``plain``, which has another template and a shorter limit."""
    tiny, plain = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    (plain / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    models = {"tiny": str(tiny), "plain": {"path": str(plain), "max_model_len": SHORT}}
    async with cluster(tmp_path, store_url, models=models) as found:
        yield found


async def test_both_are_listed_each_with_its_length(both: Cluster) -> None:
    listed = [model async for model in both.openai().models.list()]
    lengths = {model.id: model.model_dump()["max_model_len"] for model in listed}
    assert lengths == {"tiny": 2048, "plain": SHORT}
    assert (await both.openai().models.retrieve("plain")).id == "plain"


async def test_a_request_goes_to_its_model_through_its_template(both: Cluster) -> None:
    said = {}
    for name in ("tiny", "plain"):
        answer = await both.openai().chat.completions.create(
            model=name, messages=[{"role": "user", "content": "hi"}]
        )
        assert answer.model == name
        request = both.emulated.submitted[-1]
        assert request.model == name
        said[name] = len(request.prompt_token_ids)
    assert said == {"tiny": 5, "plain": len("[hi]")}  # two words in three markers, or four bytes


async def test_a_model_that_is_not_served_is_refused_with_those_that_are(both: Cluster) -> None:
    served = "this gateway serves 'tiny', 'plain'"
    with pytest.raises(openai.NotFoundError, match=served):
        await both.openai().completions.create(model="mini", prompt="abc")
    with pytest.raises(openai.NotFoundError, match=served):
        await both.openai().models.retrieve("mini")
    async with both.http() as client:
        nameless = await client.post("/tokenize", json={"prompt": "abc"})
        assert nameless.status_code == 404
        assert served in nameless.text
        counted = await client.post("/tokenize", json={"model": "plain", "prompt": "abc"})
        assert counted.json()["max_model_len"] == SHORT


async def test_kserves_clients_find_both(both: Cluster) -> None:
    pb = inference_pb2
    async with grpc.aio.insecure_channel(both.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name in ("tiny", "plain"):
            found = await stub.ModelMetadata(pb.ModelMetadataRequest(name=name), timeout=60)
            assert found.name == name
        request = pb.ModelInferRequest(model_name="plain")
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"abc")
        assert (await stub.ModelInfer(request, timeout=180)).model_name == "plain"


async def test_one_without_workers_is_told_and_keeps_nobody_from_the_other(both: Cluster) -> None:
    pb = inference_pb2
    async with both.http() as client, grpc.aio.insecure_channel(both.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def comes(status: int, reason: str) -> None:
            async with asyncio.timeout(120):
                while True:
                    answer = await client.get("/health")
                    if (answer.status_code, answer.json()["reason"]) == (status, reason):
                        return
                    await asyncio.sleep(0.05)

        await comes(200, "")  # the emulated worker is of any model
        both.emulated._renewing.cancel()  # type: ignore[union-attr]
        own = Member("worker", both.emulated.worker_id, "w:1", "unified", model="tiny")
        await both.store.join(own, 600.0)
        await comes(200, "no worker prefills for 'plain'; no worker decodes for 'plain'")
        ready = {
            name: (await stub.ModelReady(pb.ModelReadyRequest(name=name), timeout=60)).ready
            for name in ("tiny", "plain")
        }
        assert ready == {"tiny": True, "plain": False}
        await both.store.leave(own)
        lacks = [f"no worker {does} for {name!r}" for name in ("tiny", "plain") for does in DOES]
        await comes(503, "; ".join(lacks))


class Listener(predictor_pb2_grpc.PredictorServicer):
    """A predictor that knows a length for each model."""

    def __init__(self) -> None:
        self.observed: dict[str, list[int]] = {}
        self.asked: set[str] = set()

    async def Observe(
        self, request: predictor_pb2.ObserveRequest, context: Any
    ) -> predictor_pb2.ObserveReply:
        self.observed.setdefault(request.model, []).extend(request.num_output_tokens)
        return predictor_pb2.ObserveReply(num_observed=1)

    async def GetTable(
        self, request: predictor_pb2.GetTableRequest, context: Any
    ) -> predictor_pb2.LengthTable:
        self.asked.add(request.model)
        mean = {"tiny": 10.0, "plain": 20.0}[request.model]
        return predictor_pb2.LengthTable(
            model=request.model, mean_output_tokens=[mean], num_samples=[1]
        )


async def test_lengths_are_reported_and_asked_for_by_model(
    both: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feedback, "_CALL_TIMEOUT", 60.0)  # a report that fails is dropped
    listener = Listener()  # type: ignore[abstract]  # the other calls are nobody's here
    server = GrpcServer(ServiceConfig(service_id="listener"))
    server.add(listener)
    await both.store.join(Member("predictor", "predictor-1", await server.start()), ttl=600)
    client = both.openai()
    for name, text in (("tiny", "abc"), ("plain", "abcde")):
        await client.completions.create(model=name, prompt=text)
    await until(lambda: listener.observed == {"tiny": [3], "plain": [5]})
    expected = {"tiny": 10.0, "plain": 20.0}
    async with asyncio.timeout(120):
        while True:  # the table may be under way
            for name in expected:
                await client.completions.create(model=name, prompt="abc", max_tokens=32)
            found = {r.model: r.predicted_output_tokens for r in both.emulated.submitted[-2:]}
            if found == expected:
                break
    await server.stop(0)


def test_models_are_given_by_name_and_stand_alone(tmp_path: Path) -> None:
    folder = str(tmp_path)
    flags = ("--models", f"a={folder}", "--models", f"b={folder}", "--max-waiting", "3")
    config = read_config(GatewayConfig, flags)
    found = [(one.model_name, one.model, one.max_waiting) for one in config.by_model()]
    assert found == [("a", folder, 3), ("b", folder, 3)]
    only = read_config(GatewayConfig, ("--model", folder))
    assert [*only.by_model()] == [only]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--models", '{"a": {"path": "x", "max_model_len": -5}}'),
            "--models.a.max-model-len is -5",
        ),
        (("--models", '{"a": {"pth": "x"}}'), "--models.a.pth"),
        (("--models", '{"": "x"}'), "a model without a name"),
        (("--models", "a=x", "--model-name", "b"), "model_name is for one model"),
        (("--models", "a=x", "--max-model-len", "9"), "max_model_len is for one model"),
    ],
)
def test_wrong_models_are_refused(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        read_config(GatewayConfig, flags)
