"""The client over real sockets: streams, failures by kind, connections kept and dropped."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bench_server import Answer, answer_of, bench_server, chat_event
from headway.cli.bench.client import Client, Endpoint, RequestFailedError
from headway.errors import HeadwayError

PATH = "/v1/chat/completions"


def ignore(data: bytes, now: float) -> None:
    pass


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://h:8000", "h", 8000, ""),
        ("http://h:8000/v1/", "h", 8000, ""),
        ("https://h/api/v1", "h", 443, "/api"),
        ("h", "h", 80, ""),
        ("http://[::1]:7", "::1", 7, ""),
    ],
)
def test_a_base_url_is_read_with_or_without_v1(url: str, host: str, port: int, prefix: str) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.port, endpoint.prefix) == (host, port, prefix)


@pytest.mark.parametrize("url", ["", "ftp://h", "http://h:x", "http://", "http://h/?a=b"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(HeadwayError, match="url"):
        Endpoint.parse(url)


@pytest.mark.parametrize("url", ["http://h\r\nX: 1", "http://h/a b", "http://h:8000/v1\t"])
def test_no_url_reaches_into_the_request(url: str) -> None:
    try:
        request = Endpoint.parse(url).request("GET", "/v1/models")
    except HeadwayError:
        return
    assert request.count(b"\r\n") == 5
    assert request.split(b"\r\n")[0].count(b" ") == 2


async def test_events_come_in_order_and_the_connection_is_kept() -> None:
    async with bench_server(lambda body: answer_of("ab", "c")) as server:
        client = Client(Endpoint.parse(server.url, "secret"), 10.0)
        for _ in range(3):
            events: list[bytes] = []
            response = await client.post(PATH, b"{}", lambda data, now: events.append(data))  # noqa: B023
            assert (response.status, events[-1], len(events)) == (200, b"[DONE]", 7)
        client.close()
    assert server.num_connections == 1
    assert all("Authorization: Bearer secret\r\n" in head for head in server.heads)


async def test_an_error_response_has_its_status_and_body() -> None:
    error = {"error": {"message": "slow down"}}
    async with bench_server(lambda body: Answer([error], status=429)) as server:
        client = Client(Endpoint.parse(server.url), 10.0)
        response = await client.post(PATH, b"{}", ignore)
        client.close()
    assert response.status == 429
    assert b"slow down" in response.body


async def test_a_connection_that_breaks_is_a_connection_error() -> None:
    async with bench_server(lambda body: Answer([chat_event(content="a")], cut=True)) as server:
        client = Client(Endpoint.parse(server.url), 10.0)
        with pytest.raises(RequestFailedError) as failed:
            await client.post(PATH, b"{}", ignore)
        client.close()
    assert failed.value.kind == "connection"


async def test_a_request_that_timed_out_leaves_no_connection_behind() -> None:
    answers = iter([Answer([chat_event(content="a")], hang=True), answer_of("", "b")])
    async with bench_server(lambda body: next(answers)) as server:
        client = Client(Endpoint.parse(server.url), 0.2)
        with pytest.raises(RequestFailedError) as failed:
            await client.post(PATH, b"{}", ignore)
        client = _patient(client, server.url)
        events: list[bytes] = []
        await client.post(PATH, b"{}", lambda data, now: events.append(data))
        client.close()
    assert failed.value.kind == "timeout"
    assert b'"b"' in events[1]
    assert server.num_connections == 2


def _patient(client: Client, url: str) -> Client:
    """The same idle connections, more time."""
    patient = Client(Endpoint.parse(url), 10.0)
    patient._idle = client._idle
    return patient


async def test_an_error_in_the_stream_is_a_kind_of_its_own() -> None:
    events = [chat_event(content="a"), {"error": {"message": "worker lost"}}]
    from headway.cli.bench.sse import Stream

    async with bench_server(lambda body: Answer(events)) as server:
        client = Client(Endpoint.parse(server.url), 10.0)
        with pytest.raises(RequestFailedError) as failed:
            await client.post(PATH, b"{}", Stream().take)
        client.close()
    assert (failed.value.kind, "worker lost" in failed.value.detail) == ("error event", True)


async def test_a_server_that_speaks_no_http_is_a_bad_response() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-hello\r\n")
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = Client(Endpoint.parse(f"http://127.0.0.1:{port}"), 10.0)
    with pytest.raises(RequestFailedError) as failed:
        await client.get("/v1/models")
    client.close()
    listening.close()
    assert failed.value.kind == "bad response"


async def test_nobody_listening_is_a_connection_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(RequestFailedError) as failed:
        await Client(Endpoint.parse(f"http://127.0.0.1:{port}"), 5.0).get("/v1/models")
    assert failed.value.kind == "connection"
