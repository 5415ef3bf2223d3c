"""The open loop against real connections: what comes is timed, what fails is counted by kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from bench.runner.offered import looped, replayed
from bench.serve.client import NO_HEADERS, Client, Endpoint, OnEvent, RequestFailedError, Response
from bench.serve.plan import Plan, Planned
from bench.serve.replay import Replay, ReplayedRequest
from bench.serve.report import summarise
from headway.errors import HeadwayError
from headway.metrics import Slo
from tests.fakes.bench_servers import reply, saying

GOOD = b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n"
    for event in (
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "5"}}]},
        {"choices": [{"delta": {"content": "0"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
    )
)
DONE = b"data: [DONE]\n\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def plan(num_requests: int, answer: str | None = "50") -> Plan:
    found = [Planned(index, 0.01 * index, b"{}", "add", answer) for index in range(num_requests)]
    return Plan("/v1/chat/completions", found, ())


async def replay(
    *replies: bytes, num_requests: int = 1, patience: float = 10.0, most_open: int = 100
) -> list[ReplayedRequest]:
    async with saying(*replies) as url:
        client = Client(Endpoint.parse(url), patience)
        run = Replay(client, plan(num_requests), most_open=most_open)
        try:
            await run.run(asyncio.Event())
        finally:
            client.close()
        assert run.tally.num_ended == len(run.outcomes) == num_requests
        return run.outcomes


async def test_a_whole_stream_is_timed_counted_and_checked() -> None:
    (outcome,) = await replay(reply(GOOD + DONE))
    assert outcome.error == ""
    assert outcome.times is not None
    assert (outcome.times.num_output_tokens, outcome.prompt_tokens) == (3, 4)
    assert (outcome.finish_reason, outcome.correct, len(outcome.gaps)) == ("stop", True, 2)
    at = outcome.times
    assert at.first_answer_at is not None
    assert outcome.sent_at <= at.first_token_at <= at.first_answer_at <= at.last_token_at
    assert at.last_token_at <= outcome.ended_at


async def test_a_stream_in_chunks_is_whole_too() -> None:
    pieces = (GOOD[:50], GOOD[50:51], GOOD[51:] + DONE)
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    (outcome,) = await replay(CHUNKED + framed + b"0\r\n\r\n")
    assert (outcome.error, outcome.correct) == ("", True)


async def test_a_body_that_ends_with_its_connection_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    (outcome,) = await replay(head + GOOD + DONE)
    assert outcome.error == ""


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (
            reply(b'{"error": {"message": "too many"}}', status="429 Too Many Requests", kind="x"),
            "HTTP 429",
            "too many",
        ),
        (reply(b"<html>", status="502 Bad Gateway", kind="text/html"), "HTTP 502", "<html>"),
        (reply(b'data: {"error": {"message": "lost"}}\n\n'), "error event", "lost"),
        (reply(GOOD[:40] + b"\n\n"), "bad response", "none of OpenAI's"),
        (reply(GOOD.replace(b'"stop"', b"null") + DONE), "cut off", "finish_reason"),
        (reply(GOOD.replace(b"stop", b"error") + DONE), "cut off", "error"),
        (CHUNKED + b"40\r\ndata", "connection", "closed"),
        (b"SSH-2.0-x\r\n", "bad response", "no HTTP"),
        (reply(b"{}", kind="application/json"), "cut off", "finish_reason"),
        (
            reply(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'),
            "empty",
            "no token",
        ),
    ],
)
async def test_what_fails_is_counted_by_kind_with_its_reason(
    answer: bytes, kind: str, detail: str
) -> None:
    (outcome,) = await replay(answer)
    assert outcome.error_kind == kind
    assert detail in outcome.error
    summary = summarise([outcome], Slo({}), 1.0)
    assert (summary["errors"], summary["num_finished"]) == ({kind: 1}, 0)


async def test_a_silent_server_times_out() -> None:
    (outcome,) = await replay(b"", patience=0.2)
    assert outcome.error_kind == "timeout"


async def test_a_failure_leaves_the_other_requests_alone() -> None:
    outcomes = await replay(reply(b"", status="503 Busy"), reply(GOOD + DONE), num_requests=2)
    assert sorted(outcome.error_kind for outcome in outcomes) == ["", "HTTP 503"]


async def test_beyond_the_most_connections_a_request_fails_and_does_not_wait() -> None:
    outcomes = await replay(b"", num_requests=2, patience=0.3, most_open=1)
    assert [outcome.error_kind for outcome in outcomes] == ["timeout", "too many open"]


async def test_being_stopped_ends_what_runs_and_sends_nothing_more() -> None:
    stopping = asyncio.Event()
    async with saying(b"") as url:
        client = Client(Endpoint.parse(url), 30.0)
        late = Planned(1, 1000.0, b"{}", "", None)
        run = Replay(client, Plan("/", [*plan(1).requests, late], ()), most_open=9)
        running = asyncio.create_task(run.run(stopping))
        while not run.tally.num_sent:
            await asyncio.sleep(0.01)
        stopping.set()
        await asyncio.wait_for(running, 10)
        client.close()
    assert [outcome.error_kind for outcome in run.outcomes] == ["stopped"]


async def test_a_closed_loop_keeps_its_number_in_flight_until_all_are_sent() -> None:
    async with saying(*[reply(GOOD + DONE)] * 9) as url:
        outcomes = await looped(url, plan(9), 3, 600.0, 60.0)
    assert [each.planned.index for each in outcomes] == list(range(9))
    assert not [each.error for each in outcomes if each.error]
    for one in outcomes:
        assert sum(each.sent_at <= one.sent_at < each.ended_at for each in outcomes) <= 3


async def test_a_closed_loop_begins_no_request_when_its_time_is_up() -> None:
    async with saying(reply(GOOD + DONE)) as url:
        assert await looped(url, plan(3), 1, -1.0, 60.0) == []


async def test_a_replay_fails_what_lasts_longer_than_it_may() -> None:
    async with saying(b"") as url:
        (outcome,) = await replayed(url, plan(1), within=0.2)
    assert outcome.error_kind == "stopped"


async def test_what_nobody_waits_for_is_cut_off_and_not_sent() -> None:
    late = Planned(1, 1000.0, b"{}", "late", None)
    async with saying(reply(GOOD + DONE)) as url:
        both = Plan("/", [*plan(1).requests, late], ())
        (only,) = await replayed(url, both, until_ended=lambda planned: planned.task == "add")
    assert only.correct


async def test_a_replay_that_is_called_off_leaves_nobody_asking() -> None:
    def num_asking() -> int:
        return sum("Replay._request" in repr(task) for task in asyncio.all_tasks())

    async with saying(b"", b"") as url:
        running = asyncio.create_task(replayed(url, plan(2)))
        async with asyncio.timeout(60):
            while num_asking() < 2:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert num_asking() == 0


async def test_a_request_may_have_a_path_of_its_own() -> None:
    paths = []

    class Paths(Client):
        async def post(
            self,
            path: str,
            body: bytes,
            on_event: OnEvent,
            headers: Mapping[str, str] = NO_HEADERS,
        ) -> Response:
            paths.append(path)
            return await super().post(path, body, on_event, headers)

    mixed = Plan("/chat", [*plan(1).requests, Planned(1, 0.0, b"{}", "", None, path="/own")], ())
    async with saying(*[reply(GOOD + DONE)] * 2) as url:
        client = Paths(Endpoint.parse(url), 60.0)
        await Replay(client, mixed, most_open=9).run(asyncio.Event())
        client.close()
    assert sorted(paths) == ["/chat", "/own"]


async def test_connections_are_used_again_and_a_closed_one_is_replaced() -> None:
    closing = reply(b"{}").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with saying(reply(b"{}"), closing, reply(b"{}")) as url:
        client = Client(Endpoint.parse(url), 5.0)
        for _ in range(3):
            assert (await client.get("/v1/models")).status == 200
        client.close()


async def test_no_listener_is_a_connection_error() -> None:
    client = Client(Endpoint.parse("http://127.0.0.1:1"), 5.0)
    with pytest.raises(RequestFailedError, match="connection"):
        await client.get("/")


def test_a_base_url_may_end_in_v1_and_have_a_path() -> None:
    endpoint = Endpoint.parse("https://host/some/v1/", "key")
    assert (endpoint.host, endpoint.port, endpoint.prefix, endpoint.tls) == (
        "host",
        443,
        "/some",
        True,
    )
    head = endpoint.request("GET", "/v1/models").decode()
    assert head.startswith("GET /some/v1/models HTTP/1.1\r\nHost: host:443\r\n")
    assert "Authorization: Bearer key\r\n" in head
    assert Endpoint.parse("127.0.0.1:8000").port == 8000


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:x", "http://h:99999", "http://h?x"]
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(HeadwayError, match="url"):
        Endpoint.parse(url)
