"""``Gateway.Generate`` and ``TokenSink.Attach`` over real gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from headway.core.gateway.events import Delivery, WorkerBack, WorkerDetached
from headway.core.gateway.shares import Place
from headway.errors import HeadwayError
from headway.request import Request, SamplingParams
from protos import common_pb2, gateway_pb2, gateway_pb2_grpc
from services.gateway import grpc_edge
from services.gateway.api_call import ApiCall
from services.gateway.auth import key_line
from services.gateway.grpc_edge import GrpcReply
from services.gateway.metrics import GatewayMetrics
from services.gateway.output_text import OutputText
from services.gateway.outputs import Output
from services.gateway.reading import INLINE_BYTES
from services.gateway.tokenizer import TextCodec
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.membership import NONCE_DIGEST, digest_of
from services.runtime.store import Member
from tests.fakes.gateway_harness import GATEWAY_ID, Cluster, cluster, until
from tests.fakes.http_rig import bounds
from tests.fakes.tiny_model import byte_tokenizer


async def generate(
    running: Cluster, request: gateway_pb2.GenerateRequest, key: str = ""
) -> list[gateway_pb2.GenerateReply]:
    metadata = [("authorization", f"Bearer {key}")] if key else None
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        call = gateway_pb2_grpc.GatewayStub(channel).Generate(request, metadata=metadata)
        return [reply async for reply in call]


def chat(text: str, max_tokens: int | None = None) -> gateway_pb2.GenerateRequest:
    message = gateway_pb2.ChatMessage(role="user", content=text)
    return gateway_pb2.GenerateRequest(
        model="tiny",
        chat=gateway_pb2.ChatMessages(messages=[message]),
        sampling=gateway_pb2.SamplingOptions(max_tokens=max_tokens),
    )


async def refused(
    running: Cluster, request: gateway_pb2.GenerateRequest, key: str = ""
) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(running, request, key)
    return caught.value.code()


async def test_a_chat_streams_text_reasoning_ids_and_usage(running: Cluster) -> None:
    replies = await generate(running, chat("<think>\nhm\n</think>\nyes"))
    assert "".join(r.text for r in replies) == "yes"
    assert "".join(r.reasoning_text for r in replies) == "hm"
    assert replies[0].request_id
    assert not any(r.request_id for r in replies[1:])
    token_ids = tuple(i for r in replies for i in r.token_ids)
    assert token_ids == running.emulated.submitted[0].prompt_token_ids
    assert replies[-1].finish_reason == common_pb2.FINISH_REASON_STOP
    assert replies[-1].usage.completion_tokens == len(token_ids)
    assert replies[-1].usage.reasoning_tokens == 6
    assert replies[-1].usage.cached_tokens == 0
    again = await generate(running, chat("<think>\nhm\n</think>\nyes"))
    assert again[-1].usage.cached_tokens == again[-1].usage.prompt_tokens - 1


async def test_prompts_and_token_ids_work_as_well_and_zero_is_not_absent(running: Cluster) -> None:
    sampling = gateway_pb2.SamplingOptions(temperature=0.0, max_tokens=2)
    for request in (
        gateway_pb2.GenerateRequest(model="tiny", prompt="abc", sampling=sampling),
        gateway_pb2.GenerateRequest(
            model="tiny", token_ids=gateway_pb2.TokenIds(ids=[97, 98, 99]), sampling=sampling
        ),
    ):
        replies = await generate(running, request)
        assert "".join(r.text for r in replies) == "ab"
        assert replies[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert running.emulated.submitted[0].sampling.temperature == 0.0


async def test_bad_requests_are_refused_with_their_code(running: Cluster) -> None:
    assert await refused(running, chat("a", max_tokens=0)) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(running, chat("a", max_tokens=9999)) is grpc.StatusCode.INVALID_ARGUMENT
    nothing = gateway_pb2.GenerateRequest(model="tiny")
    assert await refused(running, nothing) is grpc.StatusCode.INVALID_ARGUMENT
    other = gateway_pb2.GenerateRequest(model="other", prompt="a")
    assert await refused(running, other) is grpc.StatusCode.NOT_FOUND


async def test_a_key_is_asked_for_where_keys_are_configured(tmp_path: Path, store_url: str) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("ann", "secret"))
    file.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=file) as running:
        assert await refused(running, chat("a")) is grpc.StatusCode.UNAUTHENTICATED
        assert await refused(running, chat("a"), "wrong") is grpc.StatusCode.UNAUTHENTICATED
        assert "".join(r.text for r in await generate(running, chat("a"), "secret")) == "a"


async def test_a_client_that_hangs_up_stops_the_worker(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, delay=0.01) as running:
        async with grpc.aio.insecure_channel(running.grpc_address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            call = stub.Generate(chat("abc" * 100))
            async for _ in call:
                call.cancel()
                break
        await until(lambda: bool(running.emulated.links[GATEWAY_ID].cancelled))
        await until(lambda: running.service.num_open == 0)


async def attach(
    running: Cluster, *batches: gateway_pb2.TokenBatch, address: str = ""
) -> tuple[list[gateway_pb2.TokenControl], grpc.StatusCode]:
    """What a worker is told until its stream ends."""
    ended = asyncio.Event()

    async def bring() -> AsyncIterator[gateway_pb2.TokenBatch]:
        for batch in batches:
            yield batch
        await ended.wait()

    there = address or running.service.cluster.sink_address
    async with open_channel(there, ServiceConfig(), ServiceRole.GATEWAY) as channel:
        call = gateway_pb2_grpc.TokenSinkStub(channel).Attach(bring())
        told: list[gateway_pb2.TokenControl] = []
        try:
            async with asyncio.timeout(60):
                async for control in call:
                    told.append(control)
                    ended.set()
            return told, await call.code()
        except grpc.aio.AioRpcError as error:
            return told, error.code()


def one_token(stream_id: int, worker_id: str = "w") -> gateway_pb2.TokenBatch:
    return gateway_pb2.TokenBatch(
        worker_id=worker_id,
        stream_ids=[stream_id],
        indices=[0],
        token_ids=[97],
        finish_reasons=[common_pb2.FINISH_REASON_UNSPECIFIED],
    )


async def test_a_worker_with_tokens_of_nobody_is_told_to_stop(running: Cluster) -> None:
    await generate(running, chat("a"))  # "worker" is known from now on
    await until(lambda: running.service.num_open == 0)
    told, code = await attach(running, one_token(5, "emulated"))
    assert [list(control.cancel_stream_ids) for control in told] == [[5]]
    assert code is grpc.StatusCode.OK


async def test_the_clients_port_takes_no_tokens(running: Cluster) -> None:
    told, code = await attach(running, one_token(5), address=running.grpc_address)
    assert told == []
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_the_port_for_tokens_serves_no_client(running: Cluster) -> None:
    async with grpc.aio.insecure_channel(running.service.cluster.sink_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in gateway_pb2_grpc.GatewayStub(channel).Generate(chat("a")):
                pass
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_membership_names_the_port_for_tokens(running: Cluster) -> None:
    said = running.service.member()
    assert said["address"] == running.service.cluster.sink_address != running.grpc_address
    assert said["detail"]["grpc"] == running.grpc_address


@asynccontextmanager
async def attached(
    running: Cluster, worker_id: str, nonce: str
) -> AsyncIterator[grpc.aio.StreamStreamCall[gateway_pb2.TokenBatch, gateway_pb2.TokenControl]]:
    """A worker's token stream that stays open."""
    sink = running.service.cluster.sink_address
    async with open_channel(sink, ServiceConfig(), ServiceRole.GATEWAY) as channel:
        call = wire.dial_attach(channel, nonce)
        await call.write(gateway_pb2.TokenBatch(worker_id=worker_id))
        yield call
        call.cancel()


async def test_nobody_else_takes_over_the_stream_of_a_worker(running: Cluster) -> None:
    async with attached(running, "w", "own") as first:
        await until(lambda: running.service.cluster.sink.num_attached == 1)
        async with attached(running, "w", "another") as second:
            assert await second.code() is grpc.StatusCode.PERMISSION_DENIED
        async with attached(running, "w", "") as third:
            assert await third.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not first.done()
        assert running.service.cluster.sink.num_attached == 1


@pytest.mark.parametrize("nonce", ["own", "new"])
async def test_a_worker_takes_its_own_stream_over_also_after_a_restart(
    running: Cluster, nonce: str
) -> None:
    proof = {NONCE_DIGEST: digest_of(nonce)}
    await running.store.join(Member("worker", "w", "w:1", detail=proof), 60.0)
    async with attached(running, "w", "own") as first:
        await until(lambda: running.service.cluster.sink.num_attached == 1)
        async with attached(running, "w", nonce) as second:
            assert await first.code() is grpc.StatusCode.OK
            assert not second.done()


async def test_a_worker_that_opens_its_stream_again_is_back_and_a_new_process_is_not(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[object] = []
    monkeypatch.setattr(running.service.cluster.sink, "_post", posted.append)
    for nonce, num_back in (("own", 0), ("own", 1), ("new", 1)):
        async with attached(running, "w", nonce):
            await until(lambda: running.service.cluster.sink.num_attached == 1)
        await until(lambda: running.service.cluster.sink.num_attached == 0)
        assert posted.count(WorkerBack("w", digest_of("own"))) == num_back
        assert posted[-1] == WorkerDetached("w", digest_of(nonce))


async def test_a_worker_that_shows_no_nonce_may_be_another_process_each_time(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[object] = []
    monkeypatch.setattr(running.service.cluster.sink, "_post", posted.append)
    for _ in range(2):
        async with attached(running, "w", ""):
            await until(lambda: running.service.cluster.sink.num_attached == 1)
        await until(lambda: running.service.cluster.sink.num_attached == 0)
        assert posted[-1] == WorkerDetached("w", "")
    assert not any(isinstance(each, WorkerBack) for each in posted)


async def test_what_a_stranger_says_about_a_known_stream_reaches_no_client(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.005) as running:
        answer = asyncio.create_task(generate(running, chat("abc" * 30)))
        await until(lambda: bool(running.emulated.submitted))
        stream_id = running.emulated.submitted[0].stream_id
        assert stream_id > 2**32
        evil = [gateway_pb2.TokenBatch(worker_id="evil", stream_ids=[stream_id] * 40)]
        evil[0].indices.extend(range(40))
        evil[0].token_ids.extend([33, 2**32 - 1] * 20)
        evil[0].finish_reasons.extend([common_pb2.FINISH_REASON_UNSPECIFIED] * 39)
        evil[0].finish_reasons.append(common_pb2.FINISH_REASON_STOP)
        evil[0].failures.add(stream_id=stream_id, finish_reason=4, message="forged")
        async with attached(running, "evil", "x") as call:
            await call.write(evil[0])
            replies = await answer
        assert "".join(r.text for r in replies) == "abc" * 30


async def test_a_worker_that_does_not_say_its_name_is_refused(running: Cluster) -> None:
    _, code = await attach(running, one_token(5, ""))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_batch_ends_its_stream_and_nothing_else(running: Cluster) -> None:
    uneven = gateway_pb2.TokenBatch(worker_id="w", stream_ids=[5], indices=[])
    _, code = await attach(running, uneven)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    _, code = await attach(running, one_token(7, "w2"), uneven)
    assert "".join(r.text for r in await generate(running, chat("a"))) == "a"


async def test_a_malformed_frame_an_oversized_message_and_bad_utf8_leave_the_service_working(
    running: Cluster,
) -> None:
    host, _, port = running.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000)
    await asyncio.wait_for(reader.read(), 10)  # the connection is closed, with a GOAWAY at best
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        for packed, code in (
            (b"\x12\x04abc\xff", grpc.StatusCode.INVALID_ARGUMENT),  # a prompt that is not UTF-8
            (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
            (b"\x12" + b"x" * 5_000_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            call = channel.unary_stream("/headway.v1.Gateway/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call(packed):
                    pass
            assert caught.value.code() is code
    assert "".join(r.text for r in await generate(running, chat("a"))) == "a"


async def test_a_client_that_does_not_read_is_cut_off_and_told() -> None:
    let_go: list[Output] = []
    metrics = GatewayMetrics(CollectorRegistry(), 0.1)
    reply = GrpcReply("gen-1", let_go.extend, metrics)
    places = bounds().places
    places.take("address 1.2.3.4", 1)
    output = Output(
        Request("gen-1", "m", (1,), SamplingParams(), 0.0),
        0,
        OutputText(TextCodec(byte_tokenizer()).detokeniser()),
        reply,
        Place(places, "address 1.2.3.4"),
    )
    reply.outputs.append(output)
    for _ in range(5000):
        output.deliver(Delivery("gen-1", 97, None, None), 1.0)
    assert let_go == [output]
    with pytest.raises(HeadwayError, match="read faster"):
        async for _ in reply.messages():
            pass


async def test_health_answers_and_reflection_does_not(running: Cluster) -> None:
    for address, service in (
        (running.grpc_address, "headway.v1.Gateway"),
        (running.service.cluster.sink_address, "headway.v1.TokenSink"),
    ):
        async with open_channel(address, ServiceConfig(), ServiceRole.GATEWAY) as channel:
            asked = health_pb2.HealthCheckRequest(service=service)
            stub, serving = (
                health_pb2_grpc.HealthStub(channel),
                health_pb2.HealthCheckResponse.SERVING,
            )
            async with asyncio.timeout(60):  # it follows the gateway's readiness
                while (await stub.Check(asked)).status != serving:
                    await asyncio.sleep(0.05)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await services_of(channel)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_what_a_port_serves_where_it_is_asked_for(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, grpc_reflection=True) as running:
        async with grpc.aio.insecure_channel(running.grpc_address) as channel:
            assert {"headway.v1.Gateway", "grpc.health.v1.Health"} <= await services_of(channel)
        sink = running.service.cluster.sink_address
        async with open_channel(sink, ServiceConfig(), ServiceRole.GATEWAY) as channel:
            assert "headway.v1.TokenSink" in await services_of(channel)


async def services_of(channel: grpc.aio.Channel) -> set[str]:
    """What reflection lists."""
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    async for answer in stub.ServerReflectionInfo(iter([listing])):
        return {service.name for service in answer.list_services_response.service}
    return set()


async def test_a_long_call_is_read_in_a_thread(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline, read_call = [], grpc_edge.read_call

    def noted(request: gateway_pb2.GenerateRequest) -> ApiCall:
        inline.append(threading.current_thread() is threading.main_thread())
        return read_call(request)

    monkeypatch.setattr(grpc_edge, "read_call", noted)
    await generate(running, chat("hi"))
    too_long = await refused(running, chat("a" * INLINE_BYTES))
    assert (too_long, inline) == (grpc.StatusCode.INVALID_ARGUMENT, [True, False])
