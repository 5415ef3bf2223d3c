"""The Endpoint Picker Protocol 1.0, a test for each of its sentences, over real gRPC."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headway.errors import HeadwayError
from headway.request import Request
from services.picker.config import PickerConfig
from services.picker.prompts import Prompts
from services.picker.service import EXT_PROC, INLINE_BYTES, MOST_READ
from services.runtime.config import read_config
from services.runtime.identity.roles import ServiceRole, server_name
from tests.fakes.certificates import make_certificates
from tests.fakes.picker_rig import (
    DUPLEX,
    Endpoints,
    Exchange,
    body,
    headers,
    named,
    picker,
    response_headers,
    until,
)

_SUBSET = "envoy.lb.subset_hint"
_KEY = "x-gateway-destination-endpoint-subset"
_BODY = json.dumps({"model": "m", "prompt": "Hello"}).encode()


async def test_headers_and_metadata_name_the_same_endpoints_in_order(endpoints: Endpoints) -> None:
    addresses = [await endpoints.add() for _ in range(3)]
    async with picker(*addresses) as service, Exchange(service.address) as exchange:
        assert sorted(named(await exchange.ask(_BODY))) == sorted(addresses)


async def test_the_route_is_chosen_again_with_the_new_header(endpoints: Endpoints) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        assert (await exchange.ask(_BODY)).request_headers.response.clear_route_cache


async def test_a_body_streams_back_untouched_in_pieces_of_at_most_62_kb(
    endpoints: Endpoints,
) -> None:
    text = json.dumps({"prompt": "x" * 200_000, "odd": "é\u2028 "}, ensure_ascii=False).encode()
    pieces = [text[at : at + 16_000] for at in range(0, len(text), 16_000)]
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        named(await exchange.ask(*pieces))
        got, is_end = b"", False
        while not is_end:
            response = await exchange.read()
            piece = response.request_body.response.body_mutation.streamed_response
            assert len(piece.body) <= 62_000
            got, is_end = got + piece.body, piece.end_of_stream
    assert got == text


async def test_nothing_is_answered_before_the_body_is_whole(endpoints: Endpoints) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        await exchange.send(headers(), *body(_BODY[:5], is_end=False))
        await exchange.send(*body(_BODY[5:]))
        named(await exchange.read())
        piece = (await exchange.read()).request_body.response.body_mutation.streamed_response
        assert piece.body == _BODY


async def test_trailers_may_end_a_body(endpoints: Endpoints) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
        await exchange.send(headers(), *body(_BODY, is_end=False), trailers)
        named(await exchange.read())
        piece = (await exchange.read()).request_body.response.body_mutation.streamed_response
        assert not piece.end_of_stream
        assert (await exchange.read()).HasField("request_trailers")


async def test_a_request_without_a_body_gets_an_endpoint_too(endpoints: Endpoints) -> None:
    address = await endpoints.add()
    async with picker(address) as service, Exchange(service.address) as exchange:
        await exchange.send(headers("/v1/models", end_of_stream=True))
        assert named(await exchange.read()) == [address]


@pytest.mark.parametrize(
    "text", [b"", b"no JSON", b"[]", b'{"prompt": 7}', b"\xff" * 9, b"[" * 9000]
)
async def test_a_body_that_is_wrong_passes_through_for_its_endpoint_to_refuse(
    text: bytes, endpoints: Endpoints
) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        named(await exchange.ask(text))
        piece = (await exchange.read()).request_body.response.body_mutation.streamed_response
        assert piece.body == text


async def test_a_subset_hint_leaves_only_the_endpoints_that_it_names(endpoints: Endpoints) -> None:
    addresses = [await endpoints.add() for _ in range(3)]
    async with picker(*addresses) as service:
        for address in addresses:
            async with Exchange(service.address) as exchange:
                hint = {_SUBSET: {_KEY: [address, "10.9.9.9:1"]}}
                assert named(await exchange.ask(_BODY, metadata=hint)) == [address]


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:1"]])
async def test_a_subset_that_is_empty_or_not_eligible_is_answered_with_503(
    subset: list[str], endpoints: Endpoints
) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        response = await exchange.ask(_BODY, metadata={_SUBSET: {_KEY: subset}})
        assert response.immediate_response.status.code == 503
        assert await exchange.has_ended()


async def test_without_the_key_of_the_subset_all_endpoints_count(endpoints: Endpoints) -> None:
    address = await endpoints.add()
    async with picker(address) as service, Exchange(service.address) as exchange:
        assert named(await exchange.ask(_BODY, metadata={_SUBSET: {"other": 1}})) == [address]


async def test_without_a_ready_endpoint_the_answer_is_503(endpoints: Endpoints) -> None:
    address = await endpoints.add()
    await endpoints.kill(address)
    async with picker(endpoints=address) as service, Exchange(service.address) as exchange:
        response = await exchange.ask(_BODY)
        assert response.immediate_response.status.code == 503
        assert "error" in json.loads(response.immediate_response.body)


async def test_a_request_that_is_shed_is_answered_with_429_and_retry_after(
    endpoints: Endpoints,
) -> None:
    address = await endpoints.add(token=1.0)
    text = json.dumps({"prompt": "x" * 40_000}).encode()
    async with (
        picker(address, max_waiting=1, longest_hold=300.0) as service,
        Exchange(service.address) as first,
        Exchange(service.address) as second,
        Exchange(service.address) as third,
    ):
        named(await first.ask(text))
        await second.send(headers(), *body(text))
        await until(lambda: service.num_waiting)
        response = (await third.ask(text)).immediate_response
    assert response.status.code == 429
    found = {o.header.key: o.header.raw_value.decode() for o in response.headers.set_headers}
    assert int(found["retry-after"]) >= 1
    assert found["content-type"] == "application/json"


async def test_the_gateway_says_which_endpoint_served(endpoints: Endpoints) -> None:
    addresses = [await endpoints.add() for _ in range(2)]
    async with (
        picker(*addresses, scrape_interval=60.0) as service,
        Exchange(service.address) as exchange,
        Exchange(service.address) as next_one,
    ):
        first, second = named(await exchange.ask(_BODY))
        await exchange.read()
        await exchange.send(response_headers(served=second))
        assert (await exchange.read()).HasField("response_headers")
        assert named(await next_one.ask(_BODY)) == [second]
    assert first != second


async def test_responses_stream_through_where_the_gateway_sends_them(endpoints: Endpoints) -> None:
    async with picker(await endpoints.add()) as service, Exchange(service.address) as exchange:
        named(await exchange.ask(_BODY))
        await exchange.read()
        await exchange.send(response_headers())
        await exchange.read()
        for text, is_end in ((b"data: 1\n\n", False), (b"data: [DONE]\n\n", True)):
            sent = pb.HttpBody(body=text, end_of_stream=is_end)
            await exchange.send(pb.ProcessingRequest(response_body=sent))
            response = await exchange.read()
            piece = response.response_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (text, is_end)
        await exchange.send(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()))
        assert (await exchange.read()).HasField("response_trailers")


async def test_a_gateway_that_sends_no_body_is_answered_at_its_headers(
    endpoints: Endpoints,
) -> None:
    address = await endpoints.add()
    async with picker(address) as service, Exchange(service.address) as exchange:
        await exchange.send(headers(mode=processing_mode_pb2.ProcessingMode.NONE))
        assert named(await exchange.read()) == [address]


async def test_a_body_over_the_limit_is_refused(endpoints: Endpoints) -> None:
    async with (
        picker(await endpoints.add(), max_body=10) as service,
        Exchange(service.address) as exchange,
    ):
        assert (await exchange.ask(_BODY)).immediate_response.status.code == 413


async def test_bodies_have_a_bound_together_and_make_room_as_they_are_answered(
    endpoints: Endpoints,
) -> None:
    most = len(_BODY) + 10
    async with picker(await endpoints.add(), max_bodies=most) as service:
        for _ in range(2):
            async with Exchange(service.address) as exchange:
                assert named(await exchange.ask(_BODY))
        async with Exchange(service.address) as held:
            await held.send(headers(), *body(_BODY[:20], is_end=False))
            status = 0
            while status != 503:  # until the picker has read it
                async with Exchange(service.address) as other:
                    refused = (await other.ask(_BODY)).immediate_response
                    status = refused.status.code
            assert b"the picker's limit: try again" in refused.body


@pytest.mark.parametrize("ends", ["piece", "trailers"])
async def test_a_slow_body_gives_way_where_there_is_no_room_and_is_then_refused(
    endpoints: Endpoints, ends: str
) -> None:
    async with picker(await endpoints.add(), max_bodies=len(_BODY) + 10) as service:
        service.bodies.patience = 0.0
        async with Exchange(service.address) as slow:
            await slow.send(headers(), *body(_BODY[:20], is_end=False))
            await until(lambda: service.bodies.num_held == 20)
            async with Exchange(service.address) as other:
                assert named(await other.ask(_BODY))
            trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
            await slow.send(*([trailers] if ends == "trailers" else body(_BODY[20:])))
            assert (await slow.read()).immediate_response.status.code == 503
        await until(lambda: service.bodies.num_held == 0)


async def test_a_second_request_on_a_stream_is_refused_and_leaves_nothing_behind(
    endpoints: Endpoints,
) -> None:
    addresses = [await endpoints.add() for _ in range(2)]
    async with picker(*addresses) as service:
        async with Exchange(service.address) as exchange:
            _, second = named(await exchange.ask(_BODY))
            await exchange.read()  # its body
            await exchange.send(response_headers("200", served=second))
            assert (await exchange.read()).HasField("response_headers")
            await exchange.send(headers(), *body(_BODY))
            assert (await exchange.read()).immediate_response.status.code == 400
        await until(lambda: not any(each.num_requests for each in service.endpoints()))


async def test_what_is_no_message_is_refused_and_fills_no_log(
    endpoints: Endpoints, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        picker(await endpoints.add()) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        call: Any = channel.stream_stream(f"/{EXT_PROC}/Process")()
        await call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="2 bytes are no message of this method"):
            await call.read()
    assert not caplog.records


async def test_long_bodies_are_read_in_threads_and_the_longest_not_at_all(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, request_of = [], Prompts.request_of

    def noted(prompts: Prompts, *args: Any) -> Request:
        read.append(threading.current_thread() is threading.main_thread())
        return request_of(prompts, *args)

    monkeypatch.setattr(Prompts, "request_of", noted)
    address = await endpoints.add()
    async with picker(address) as service:
        for size in (10, INLINE_BYTES, MOST_READ):
            text = json.dumps({"prompt": "x" * size}).encode()
            pieces = [text[at : at + 2**20] for at in range(0, len(text), 2**20)]
            async with Exchange(service.address) as exchange:
                assert named(await exchange.ask(*pieces)) == [address]
    assert read == [True, False]


@pytest.mark.parametrize("name", ["readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""])
async def test_readiness_follows_the_endpoints_and_liveness_does_not(
    name: str, endpoints: Endpoints
) -> None:
    address = await endpoints.add()
    await endpoints.kill(address)
    async with (
        picker(endpoints=address) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        assert await _health(channel, name) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await _health(channel, "liveness") == health_pb2.HealthCheckResponse.SERVING
    async with (
        picker(await endpoints.add()) as service,
        grpc.aio.insecure_channel(service.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=name), timeout=30
        )
        async for response in watch:
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                break


async def _health(channel: grpc.aio.Channel, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


def test_the_mode_of_the_tests_is_the_protocols() -> None:
    assert processing_mode_pb2.ProcessingMode.BodySendMode.Value("FULL_DUPLEX_STREAMED") == DUPLEX


@pytest.mark.parametrize("any_gateway", [True, False])
async def test_gateways_without_a_certificate_are_served_only_if_any_may_ask(
    any_gateway: bool, endpoints: Endpoints, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    options = {**files, "any_gateway": any_gateway}
    name = server_name("default", ServiceRole.WORKER)
    async with picker(await endpoints.add(), **options) as service:
        credentials = grpc.ssl_channel_credentials(files["tls_ca"].read_bytes())
        override = [("grpc.ssl_target_name_override", name)]
        async with grpc.aio.secure_channel(service.address, credentials, override) as channel:
            if any_gateway:
                assert await _health(channel, "liveness") == health_pb2.HealthCheckResponse.SERVING
            else:
                with pytest.raises(grpc.aio.AioRpcError):
                    await _health(channel, "liveness")


def test_any_gateway_is_said_of_a_server_with_certificates() -> None:
    with pytest.raises(HeadwayError, match="tls-cert"):
        read_config(PickerConfig, ["--endpoints=a:1", "--any-gateway"])
