"""Lives arrive at a collector of OpenTelemetry, in their clients' traces."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headway.errors import HeadwayError
from protos import gateway_pb2, gateway_pb2_grpc
from services.gateway.spans import open_spans
from tests.fakes.gateway_harness import Cluster, cluster

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP endpoint: the spans that came."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.told: set[tuple[str, str]] = set()  # names of services and of their spans
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = ExportTraceServiceRequest.FromString(_plain(body, self.headers))
                for resource in found.resource_spans:
                    named = {
                        each.key: each.value.string_value for each in resource.resource.attributes
                    }
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                        names = (span.name for span in scope.spans)
                        collector.told |= {(named["service.name"], name) for name in names}
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


def _plain(body: bytes, headers: object) -> bytes:
    assert "content-encoding" not in headers or headers["content-encoding"] == "identity"  # type: ignore[operator,index]  # of http.client
    return body


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def attributes(span: Span) -> dict[str, object]:
    found = {each.key: each.value for each in span.attributes}
    return {key: getattr(value, value.WhichOneof("value") or "") for key, value in found.items()}


async def asked(running: Cluster) -> str:
    answer = await running.openai().completions.create(
        model="tiny", prompt="once", extra_headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    )
    return answer.id


async def test_a_life_arrives_in_its_client_s_trace(
    tmp_path: Path, store_url: str, collector: Collector
) -> None:
    async with cluster(tmp_path, store_url, otlp_traces_endpoint=collector.url) as running:
        request_id = await asked(running)
        await running.openai().completions.create(model="tiny", prompt="twice")
    roots = [span for span in collector.spans if span.name == "llm_request"]
    assert len(roots) == 2
    root = next(s for s in roots if attributes(s)["gen_ai.request.id"] == request_id)
    other = next(s for s in roots if s is not root)
    assert root.trace_id.hex() == TRACE_ID != other.trace_id.hex()
    assert root.parent_span_id.hex() == PARENT_ID
    assert other.parent_span_id == b""
    told = attributes(root)
    assert told["gen_ai.response.model"] == "tiny"
    assert told["gen_ai.provider.name"] == "headway"
    assert told["gen_ai.usage.completion_tokens"] == told["gen_ai.usage.output_tokens"] != 0
    assert float(str(told["gen_ai.latency.time_to_first_token"])) > 0
    parts = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert "decode" in {part.name for part in parts}
    lengths = [part.end_time_unix_nano - part.start_time_unix_nano for part in parts]
    assert sum(lengths) == root.end_time_unix_nano - root.start_time_unix_nano


async def test_a_grpc_client_s_trace_has_the_spans_of_every_service(
    tmp_path: Path, store_url: str, collector: Collector
) -> None:
    async with cluster(tmp_path, store_url, otlp_traces_endpoint=collector.url) as running:
        request = gateway_pb2.GenerateRequest(model="tiny", prompt="once")
        metadata = [("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01")]
        async with grpc.aio.insecure_channel(running.grpc_address) as channel:
            call = gateway_pb2_grpc.GatewayStub(channel).Generate(request, metadata=metadata)
            assert [reply async for reply in call]
    root = next(span for span in collector.spans if span.name == "llm_request")
    assert root.parent_span_id.hex() == PARENT_ID
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert {("headway", "llm_request"), ("headway-worker", "decode")} <= collector.told


async def test_what_is_no_traceparent_is_not_kept_and_what_has_ended_is_forgotten() -> None:
    spans = open_spans("http://127.0.0.1:9/v1/traces", "g")
    assert spans is not None
    given = f"00-{TRACE_ID}-{PARENT_ID}-01"
    for wrong in ("x" * 60_000, f"{given}-more", given.upper(), f"ff{given[2:]}", f"{given}\n"):
        spans.follow("a", wrong)
    assert spans.num_followed == 0
    spans.follow("a", given)
    assert spans.num_followed == 1
    spans.ended("a", None)
    assert spans.num_followed == 0
    await spans.close()


async def test_a_refused_request_is_not_followed(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, store_url, max_waiting=1) as running:
        followed: list[str] = []
        monkeypatch.setattr(running.service, "follow", lambda name, _: followed.append(name))
        given = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        with pytest.raises(openai.RateLimitError):
            await running.openai().completions.create(
                model="tiny", prompt="once", n=3, extra_headers=given
            )
        assert followed == []
        await running.openai().completions.create(model="tiny", prompt="a", extra_headers=given)
        assert len(followed) == 1


async def test_without_a_collector_requests_are_served_all_the_same(
    tmp_path: Path, store_url: str
) -> None:
    gone = "http://127.0.0.1:9/v1/traces"
    async with cluster(tmp_path, store_url, otlp_traces_endpoint=gone) as running:
        assert await asked(running)


def test_off_it_needs_no_sdk_and_on_it_says_which_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert open_spans("", "g") is None
    with pytest.raises(HeadwayError, match=r"headway\[otel\]"):
        open_spans("http://127.0.0.1:9", "g")
