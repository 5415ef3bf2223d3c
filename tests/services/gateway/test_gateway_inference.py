"""KServe's inference protocol on the clients' port, over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import inference_pb2, inference_pb2_grpc
from tests.fakes.gateway_harness import GATEWAY_ID, Cluster, cluster, until, write_keys

Request = inference_pb2.ModelInferRequest
THOUGHT = "<think>\nhm\n</think>\nyes"


def asked(text: str, *, raw: bool = False, model: str = "tiny", **options: Any) -> Request:
    request = Request(model_name=model, id="mine")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    packed = text.encode()
    if raw:
        request.raw_input_contents.append(len(packed).to_bytes(4, "little") + packed)
    else:
        tensor.contents.bytes_contents.append(packed)
    for name, value in options.items():
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        setattr(request.parameters[name], kinds[type(value)], value)
    return request


async def infer(running: Cluster, request: Request, key: str = "") -> Any:
    metadata = [("authorization", f"Bearer {key}")] if key else None
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        return await stub.ModelInfer(request, metadata=metadata, timeout=180)


async def stream(running: Cluster, *requests: Request, key: str = "") -> list[Any]:
    async def each() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    metadata = [("authorization", f"Bearer {key}")] if key else None
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(each(), metadata=metadata, timeout=180)
        return [answer async for answer in call]


def texts(answer: Any) -> dict[str, str]:
    return {each.name: each.contents.bytes_contents[0].decode() for each in answer.outputs}


async def test_a_text_is_answered_with_a_text_its_end_and_its_usage(running: Cluster) -> None:
    answer = await infer(running, asked("abc", max_tokens=2, temperature=0.0))
    assert texts(answer) == {"text_output": "ab", "reasoning_output": ""}
    assert (answer.id, answer.model_name, answer.model_version) == ("mine", "tiny", "1")
    said = answer.parameters
    assert said["finish_reason"].string_param == "length"
    assert said["completion_tokens"].int64_param == 2
    assert said["prompt_tokens"].int64_param == len(running.emulated.submitted[0].prompt_token_ids)
    assert said["request_id"].string_param == "mine"
    assert running.emulated.submitted[0].sampling.temperature == 0.0


async def test_a_chat_goes_through_the_template_with_its_reasoning_apart(running: Cluster) -> None:
    answer = await infer(running, asked(THOUGHT, chat=True))
    assert texts(answer) == {"text_output": "yes", "reasoning_output": "hm"}
    assert answer.parameters["reasoning_tokens"].int64_param == 6


async def test_raw_tensors_are_answered_in_kind_and_only_wanted_ones_come(running: Cluster) -> None:
    request = asked("abc", raw=True, max_tokens=2)
    request.outputs.add(name="text_output")
    answer = await infer(running, request)
    assert [*answer.raw_output_contents] == [b"\x02\x00\x00\x00ab"]
    assert [each.name for each in answer.outputs] == ["text_output"]


async def test_a_stream_answers_one_request_after_the_other_as_text_comes(running: Cluster) -> None:
    wrong, second = asked("abc", model="other"), asked("xyz", stop="y")
    answers = await stream(running, asked("abcd" * 20), wrong, second)
    refused = next(n for n, each in enumerate(answers) if each.error_message)
    assert "gateway serves 'tiny'" in answers[refused].error_message
    assert answers[refused].infer_response.id == "mine"
    first, last = answers[:refused], answers[refused + 1 :]
    for found, text in ((first, "abcd" * 20), (last, "x")):
        parts = [each.infer_response for each in found]
        assert "".join(texts(part)["text_output"] for part in parts) == text
        final = [part.parameters["triton_final_response"].bool_param for part in parts]
        assert final == [*[False] * (len(parts) - 1), True]
        assert parts[-1].parameters["finish_reason"].string_param == "stop"


async def test_the_server_and_the_model_say_what_they_are(running: Cluster) -> None:
    pb = inference_pb2
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        server = await stub.ServerMetadata(pb.ServerMetadataRequest())
        assert server.name == "headway"
        model = await stub.ModelMetadata(pb.ModelMetadataRequest(name="tiny"))
        assert [each.name for each in model.inputs] == ["text_input"]
        assert [each.name for each in model.outputs] == ["text_output", "reasoning_output"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelMetadata(pb.ModelMetadataRequest(name="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        ready = await stub.ServerReady(pb.ServerReadyRequest())
        assert ready.ready == running.service.is_ready()
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="other"))).ready
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="tiny", version="2"))).ready


def _two_texts(request: Request) -> None:
    request.inputs[0].contents.bytes_contents.append(b"b")


def _other_input(request: Request) -> None:
    request.inputs.add(name="stream", datatype="BOOL", shape=[1])


def _other_type(request: Request) -> None:
    request.inputs[0].datatype = "FP32"


def _other_output(request: Request) -> None:
    request.outputs.add(name="scores")


def _other_version(request: Request) -> None:
    request.model_version = "2"


def _no_utf8(request: Request) -> None:
    request.inputs[0].contents.bytes_contents[0] = b"\xff"


def _cut_raw(request: Request) -> None:
    request.raw_input_contents.append(b"\x09\x00\x00\x00ab")


def _unknown_option(request: Request) -> None:
    request.parameters["beams"].int64_param = 2


def _option_of_another_type(request: Request) -> None:
    request.parameters["max_tokens"].string_param = "many"


def _option_without_value(request: Request) -> None:
    request.parameters["max_tokens"].SetInParent()


def _out_of_range(request: Request) -> None:
    request.parameters["max_tokens"].int64_param = -1


def _bad_id(request: Request) -> None:
    request.id = "two words"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_two_texts, "2 texts"),
        (_other_input, "text_input alone"),
        (_other_type, "BYTES of shape"),
        (_other_output, "text_output"),
        (_other_version, "model_version"),
        (_no_utf8, "UTF-8"),
        (_cut_raw, "four bytes"),
        (_unknown_option, "'beams'"),
        (_option_of_another_type, "max_tokens"),
        (_option_without_value, "max_tokens"),
        (_out_of_range, "max_tokens"),
        (_bad_id, "letters, digits"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(
    running: Cluster, spoil: Any, said: str
) -> None:
    request = asked("abc")
    spoil(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await infer(running, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in str(caught.value.details())


async def test_keys_are_asked_for_but_not_by_health(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path / "keys")
    async with cluster(tmp_path, store_url, api_key_file=keys) as running:
        async with grpc.aio.insecure_channel(running.grpc_address) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert (await stub.ServerLive(inference_pb2.ServerLiveRequest())).live
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ServerMetadata(inference_pb2.ServerMetadataRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for call in (infer(running, asked("a")), stream(running, asked("a"), key="wrong")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert texts(await infer(running, asked("a"), "hw-a"))["text_output"] == "a"
        assert (await stream(running, asked("a"), key="hw-b"))[-1].error_message == ""


async def test_a_client_that_leaves_its_stream_stops_the_worker(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.01) as running:
        async with grpc.aio.insecure_channel(running.grpc_address) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter([asked("abc" * 100)]))
            async for _ in call:
                call.cancel()
                break
        await until(lambda: bool(running.emulated.links[GATEWAY_ID].cancelled))
        await until(lambda: running.service.num_open == 0)
