"""Sessions from gRPC to the metrics: both protocols, two tenants, ends, and names that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from protos import gateway_pb2, gateway_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.gateway.http.schema import describe
from tests.fakes.gateway_harness import Cluster, cluster, until, write_keys

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 4}
Metadata = list[tuple[str, str]]


async def generate(running: Cluster, metadata: Metadata, **fields: Any) -> None:
    request = gateway_pb2.GenerateRequest(model="tiny", prompt="abc", **fields)
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        call = gateway_pb2_grpc.GatewayStub(channel).Generate(request, metadata=metadata)
        assert [reply async for reply in call]


async def infer(running: Cluster, metadata: Metadata, **options: Any) -> None:
    request = inference_pb2.ModelInferRequest(model_name="tiny")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"abc")
    for name, value in options.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.ModelInfer(request, metadata=metadata, timeout=180)


CALLS = {"generate": generate, "infer": infer}


@pytest.mark.parametrize(
    ("call", "metadata", "fields", "name", "ends"),
    [
        (call, metadata, fields, name, ends)
        for call in CALLS
        for metadata, fields, name, ends in (
            ([], {"session_id": "s"}, "s", False),
            ([], {"session_id": "s", "session_end": True}, "s", True),
            ([], {"session_id": "s", "max_turns": 1}, "s", True),
            ([("x-session-id", "m")], {}, "m", False),
            ([("x-session-id", "m")], {"session_id": "s"}, "s", False),
            ([("x-session-id", "m"), ("x-session-end", "true")], {}, "m", True),
            ([("x-dynamo-session-id", "d"), ("x-dynamo-session-final", "1")], {}, "d", True),
        )
    ]
    + [
        ("infer", [], {"sequence_id": 7, "sequence_start": True}, "7", False),
        ("infer", [], {"sequence_id": "q", "sequence_end": True}, "q", True),
    ],
)
async def test_a_call_over_grpc_bears_its_session(
    running: Cluster, call: str, metadata: Metadata, fields: dict[str, Any], name: str, ends: bool
) -> None:
    await CALLS[call](running, metadata, **fields)
    request = running.emulated.submitted[-1]
    assert (request.session_id, request.ends_session) == (name, ends)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("metadata", "fields", "named"),
    [
        ([], {"session_id": "x" * 257}, "session_id"),
        ([], {"session_id": "a\u202eb"}, "session_id"),
        ([], {"max_turns": 3}, "max_turns"),
        ([("x-session-id", "x" * 257)], {}, "x-session-id"),
        ([("x-session-end", "maybe")], {}, "x-session-end"),
    ],
)
async def test_what_names_no_session_is_refused_over_grpc_by_its_field(
    running: Cluster, call: str, metadata: Metadata, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CALLS[call](running, metadata, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(caught.value.details())
    assert not running.emulated.submitted


async def post(running: Cluster, key: str = "", **headers: str) -> httpx.Response:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        said["authorization"] = f"Bearer {key}"
    async with running.http() as client:
        return await client.post("/v1/completions", json=BODY, headers=said)


async def test_equal_names_of_two_tenants_never_meet(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path / "keys")
    async with cluster(tmp_path, store_url, api_key_file=keys) as running:
        for key in ("hw-a", "hw-b", "hw-a"):
            assert (await post(running, key, x_session_id="same")).status_code == 200
        sessions = running.service.cluster.core.sessions
        rows = {row.tenant: row.num_turns for row in sessions.newest(9, now=0.0)}
        assert rows == {"a": 2, "b": 1}
        ended = await post(running, "hw-b", x_session_id="same", x_session_end="true")
        assert ended.status_code == 200
        await until(lambda: sessions.num_over["client"] == 1)
        assert [row.tenant for row in sessions.newest(9, now=0.0)] == ["a"], "a's goes on"


def test_the_apis_description_has_the_headers_and_the_fields_of_sessions() -> None:
    document = describe("1", needs_key=False, monitoring_needs_key=False)
    for path, body in (
        ("/v1/chat/completions", "ChatBody"),
        ("/v1/completions", "CompletionBody"),
        ("/v1/responses", "ResponseBody"),
    ):
        parameters = document["paths"][path]["post"]["parameters"]
        assert {"x-session-id", "x-session-end"} <= {each["name"] for each in parameters}
        fields = document["components"]["schemas"][body]["properties"]
        assert {"session_id", "session_end", "max_turns", "prompt_cache_key"} <= fields.keys()


async def test_sessions_are_in_the_metrics_without_their_names(running: Cluster) -> None:
    for _ in range(2):
        await post(running, x_session_id="secret-name")
    await post(running, x_session_id="secret-name", x_session_end="1")
    await post(running, x_session_id="other")
    await post(running)
    await until(lambda: running.service.num_open == 0)
    found = await running.metrics()
    assert not any("secret-name" in name or "other" in name for name in found)
    shown = {
        name.removeprefix("headway_gateway_"): value
        for name, value in found.items()
        if name.startswith(("headway_gateway_session", "headway_gateway_open_sessions"))
    }
    assert shown['open_sessions{state="idle"}'] == 1
    assert shown['open_sessions{state="running"}'] == 0
    assert shown['sessions_total{end="client"}'] == 1
    assert shown['session_turns_bucket{le="2.0"}'] == 0
    assert shown['session_turns_bucket{le="3.0"}'] == 1
    assert shown['session_turns_bucket{le="+Inf"}'] == shown["session_turns_count"] == 1
    assert shown["session_pause_seconds_count"] == 2
    assert shown["session_task_seconds_count"] == 1
    num_prompt = len(running.emulated.submitted[-1].prompt_token_ids)
    first = [
        shown[f'session_prompt_tokens_total{{cached="{c}",turn="first"}}'] for c in ("yes", "no")
    ]
    later = [
        shown[f'session_prompt_tokens_total{{cached="{c}",turn="later"}}'] for c in ("yes", "no")
    ]
    assert first == [num_prompt - 1, num_prompt + 1], "the second session's prompt was cached"
    assert later == [2 * (num_prompt - 1), 2]
    assert found["headway_gateway_cached_prompt_tokens_total"] == 4 * (num_prompt - 1)
    assert found["headway_gateway_prompt_tokens_total"] == 5 * num_prompt
