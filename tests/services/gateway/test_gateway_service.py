"""The gateway as a whole: losses behind it, clients that misbehave, metrics, draining."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from services.runtime.config import ServiceConfig
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Member
from tests.fakes.gateway_harness import GATEWAY_ID, Cluster, cluster, until

SAID = "the quick brown fox jumps over the lazy dog"


async def stream(running: Cluster, text: str = SAID, **options: object) -> AsyncIterator[str]:
    chunks = await running.openai().completions.create(  # type: ignore[call-overload]  # options vary
        model="tiny", prompt=text, max_tokens=len(text), stream=True, **options
    )
    async for chunk in chunks:
        yield chunk.choices[0].text


async def text_after(running: Cluster, trouble: str) -> str:
    """The whole text a client reads when something breaks after the fifth token."""
    pieces: list[str] = []
    async for piece in stream(running):
        pieces.append(piece)
        if len(pieces) == 20 and trouble == "lost, then scheduler":
            running.emulated.hang_up()
        if len(pieces) == 5:
            match trouble:
                case "stream":
                    running.emulated.drop_link(GATEWAY_ID)
                case "lost" | "lost, then scheduler":
                    running.emulated.lose(GATEWAY_ID)
                case "scheduler":
                    running.emulated.hang_up()
    return "".join(pieces)


@pytest.mark.parametrize("trouble", ["stream", "lost", "scheduler", "lost, then scheduler"])
async def test_whatever_breaks_in_mid_answer_the_client_reads_it_whole(
    tmp_path: Path, store_url: str, trouble: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.01) as running:
        with capture_logs() as logs:
            assert await text_after(running, trouble) == SAID
        lines = [each["reason"] for each in logs if each["event"] == "request_resubmitted"]
        assert [bool(reason) for reason in lines] == ([] if trouble == "scheduler" else [True])
        attempts = [request.attempt for request in running.emulated.submitted]
        assert attempts == ([0, 0] if trouble == "scheduler" else [0, 1, 1][: len(attempts)])
        assert len(attempts) == 2 + (trouble == "lost, then scheduler")
        again = running.emulated.submitted[1]
        said = "".join(map(chr, again.output_token_ids))
        assert SAID.startswith(said)
        assert len(said) >= 5


async def test_a_lost_attempt_is_in_the_log_without_lives_too(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.01, num_lives=0) as running:
        with capture_logs() as logs:
            assert await text_after(running, "lost") == SAID
    assert [e["attempt"] for e in logs if e["event"] == "request_resubmitted"] == [1]


async def test_a_client_that_leaves_stops_the_worker(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, delay=0.01) as running:
        chunks = await running.openai().completions.create(
            model="tiny", prompt="a", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(chunks))
        await chunks.close()
        link = running.emulated.links[GATEWAY_ID]
        await until(lambda: bool(link.cancelled))
        assert not link.running
        await until(lambda: running.service.num_open == 0)


async def test_a_client_that_leaves_a_whole_answer_stops_the_worker_too(running: Cluster) -> None:
    running.emulated.paused = True
    asked = asyncio.create_task(
        running.openai().completions.create(model="tiny", prompt="a", max_tokens=9)
    )
    await until(lambda: running.service.num_open == 1)
    asked.cancel()
    await until(lambda: running.service.num_open == 0)


async def test_a_client_that_does_not_read_is_cancelled_not_buffered_for(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, max_unsent_bytes=65_536, max_model_len=2048) as running:
        body = {
            "model": "tiny",
            "prompt": "a",
            "max_tokens": 2047,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 20,
        }
        packed = json.dumps(body).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
        writer.write(head % len(packed) + packed)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio types it too widely
        await until(lambda: bool(running.emulated.links))
        await until(lambda: running.service.num_open == 0)
        writer.transport.abort()
        metrics = await running.metrics()
        assert metrics["headway_gateway_slow_clients_total"] == 1
        assert metrics['headway_gateway_requests_total{end="cancelled"}'] == 1


async def test_too_many_waiting_are_sent_away_and_welcome_later(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, max_waiting=2) as running:
        running.emulated.paused = True
        client = running.openai()
        waiting = [
            asyncio.create_task(client.completions.create(model="tiny", prompt="a"))
            for _ in range(2)
        ]
        await until(lambda: running.service.num_open == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model="tiny", prompt="a")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):  # before its outputs are looked at
            await client.completions.create(model="tiny", prompt="a", n=128, max_tokens=10**6)
        running.emulated.paused = False
        for task in waiting:
            task.cancel()
        await until(lambda: running.service.num_open == 0)
        answer = await client.completions.create(model="tiny", prompt="a")
        assert answer.choices[0].text == "a"


async def test_a_request_over_its_time_ends_with_the_tokens_so_far_and_says_so(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.01, request_timeout=3.0) as running:
        client, text = running.openai(), "a" * 1000
        asked = client.completions.create(model="tiny", prompt=text, max_tokens=1000)
        at_once = asyncio.create_task(asked)
        streamed = await client.completions.create(
            model="tiny", prompt=text, max_tokens=1000, stream=True
        )
        chunks = [chunk.choices[0] async for chunk in streamed]
        assert len("".join(chunk.text for chunk in chunks)) > 0
        whole = (await at_once).choices[0]
        assert len(whole.text) > 0
        for choice in (chunks[-1], whole):
            assert choice.finish_reason == "length"
            assert (choice.model_extra or {})["stop_reason"] == "deadline"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"\xff\xfe", 400),
        ("/v1/chat/completions", b'{"model": NaN}', 400),
        ("/v1/chat/completions", b"[" * 100_000, 400),
        ("/v1/completions", b"{}", 400),
        ("/v1/embeddings", b"{}", 404),
        ("/v1/completions", b"x" * 5_000_000, 413),
    ],
)
async def test_bad_bodies_and_routes_get_openais_error_and_the_service_goes_on(
    running: Cluster, path: str, body: bytes, status: int
) -> None:
    async with running.http() as client:
        response = await client.post(path, content=body)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert (await client.get("/health")).json()["status"] == "ok"


@pytest.mark.parametrize("padding", [0, 9000])
async def test_half_a_surrogate_pair_in_a_fields_name_is_refused(
    running: Cluster, padding: int
) -> None:
    body = b'{"model":"tiny","prompt":"a","x\\ud800":1,"user":"%b"}' % (b"u" * padding)
    async with running.http() as client:
        response = await client.post("/v1/completions", content=body)
        assert response.status_code == 400
        assert "hex escape" in response.json()["error"]["message"]


@pytest.mark.parametrize("padding", [0, 9000])
async def test_an_answer_that_fails_ends_its_connection_and_holds_up_no_drain(
    running: Cluster, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "cannot be said")

    monkeypatch.setattr(running.service.metrics, "count", fail)
    async with running.http() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", content=b" " * padding)
    await asyncio.wait_for(running.service.drain(), 10)


async def test_a_wrong_method_is_405(running: Cluster) -> None:
    async with running.http() as client:
        response = await client.get("/v1/completions")
        assert response.status_code == 405
        assert "POST" in response.json()["error"]["message"]
        assert response.headers["allow"] == "POST"
        assert (await client.request("TRACE", "/v1/models")).headers["allow"] == "GET, HEAD"


async def test_metrics_count_what_happened_with_help_and_units(running: Cluster) -> None:
    await running.openai().completions.create(model="tiny", prompt="abc")
    with pytest.raises(openai.NotFoundError):
        await running.openai().completions.create(model="other", prompt="abc")
    async with running.http() as client:
        text = (await client.get("/metrics")).text
    assert "# HELP headway_gateway_ttft_seconds Seconds from" in text
    metrics = await running.metrics()
    assert metrics['headway_gateway_requests_total{end="stop"}'] == 1
    assert metrics["headway_gateway_output_tokens_total"] == 3
    assert metrics["headway_gateway_prompt_tokens_total"] == 3
    assert metrics['headway_gateway_errors_total{code="not_found"}'] == 1
    for name in ("ttft", "tpot", "e2e"):
        assert metrics[f"headway_gateway_{name}_seconds_count"] == 1
    assert metrics["headway_gateway_open_requests"] == 0
    assert metrics["headway_gateway_scheduler_connected"] == 1


async def test_draining_finishes_streams_and_takes_nothing_new(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, delay=0.01) as running:
        pieces: list[str] = []
        drained: asyncio.Task[None] | None = None
        async for piece in stream(running):
            pieces.append(piece)
            if drained is None:
                drained = asyncio.create_task(running.service.drain())
                await asyncio.sleep(0.05)
                with pytest.raises(openai.APIConnectionError):
                    await running.openai().models.list()
        assert "".join(pieces) == SAID
        assert drained is not None
        await asyncio.wait_for(drained, 10)


async def test_many_streams_at_once_are_each_read_whole(running: Cluster) -> None:
    async def read(number: int) -> bool:
        text = f"{number}:{SAID}"
        return "".join([piece async for piece in stream(running, text)]) == text

    assert all(await asyncio.gather(*(read(i) for i in range(64))))


async def test_health_says_what_is_missing_and_life_goes_on(running: Cluster) -> None:
    async def health() -> tuple[int, str]:
        response = await client.get("/health")
        return response.status_code, response.json()["reason"]

    async def comes(status: int, reason: str) -> None:
        async with asyncio.timeout(20):
            while (found := await health())[0] != status or reason not in found[1]:
                await asyncio.sleep(0.02)

    async with running.http() as client:
        await comes(200, "")
        prefiller = Member("worker", running.emulated.worker_id, "w:1", "prefill")
        running.emulated._renewing.cancel()  # type: ignore[union-attr]
        await running.store.join(prefiller, 60.0)
        await comes(503, "no worker decodes")
        await running.store.join(Member("worker", "d", "d:1", "convertible"), 60.0)
        await comes(200, "")
        await running.store.leave(prefiller)
        await running.emulated.stop()
        await comes(503, "no scheduler leads")
        assert (await client.get("/livez")).status_code == 200


async def test_requests_are_refused_by_name_where_no_worker_could_serve_them_for_long(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, worker_patience=0.2) as running:
        prefiller = Member("worker", running.emulated.worker_id, "w:1", "prefill")
        running.emulated._renewing.cancel()  # type: ignore[union-attr]
        await running.store.join(prefiller, 60.0)
        running.emulated.paused = True
        asked = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
        async with running.http() as client, asyncio.timeout(20):
            refused = await client.post("/v1/completions", json=asked)
            assert refused.status_code == 503
            assert refused.json()["error"]["message"].startswith("no worker decodes, for ")
            await running.store.join(Member("worker", "d", "d:1", "decode"), 60.0)
            running.emulated.paused = False
            while not (await client.post("/v1/completions", json=asked)).is_success:
                await asyncio.sleep(0.02)


async def test_grpc_health_follows_readiness_and_the_workers_port_does_not(
    running: Cluster,
) -> None:
    request = health_pb2.HealthCheckRequest(service="headway.v1.Gateway")
    well, unwell = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    async with asyncio.timeout(60), grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = aiter(stub.Watch(request))

        async def comes(status: int) -> None:
            while (await anext(watch)).status != status:
                pass

        await comes(well)
        running.emulated._renewing.cancel()  # type: ignore[union-attr]
        prefiller = Member("worker", running.emulated.worker_id, "w:1", "prefill")
        await running.store.join(prefiller, 60.0)
        await comes(unwell)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == unwell
        await running.store.join(Member("worker", "d", "d:1", "decode"), 60.0)
        await comes(well)
        await running.emulated.stop()
        await comes(unwell)
    sink = running.service.cluster.sink_address
    assert await is_serving(sink, ServiceConfig(), ServiceRole.GATEWAY, within=60)
