"""What the client must never do: use a connection that is not at rest, let a URL into a header."""

from __future__ import annotations

import pytest

from bench.serve.client import Client, Endpoint, RequestFailedError
from headway.errors import HeadwayError
from tests.fakes.bench_servers import reply, saying

BEGUN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: 1\n\n"
)


def ignore(data: bytes, now: float) -> None:
    """No event matters here."""


async def test_a_connection_whose_request_timed_out_is_not_used_again() -> None:
    async with saying(BEGUN, reply(b"data: 2\n\n")) as url:
        client = Client(Endpoint.parse(url), 0.3)
        with pytest.raises(RequestFailedError, match="timeout"):
            await client.post("/", b"{}", ignore)
        events: list[bytes] = []
        await client.post("/", b"{}", lambda data, now: events.append(data))
        client.close()
    assert events == [b"2"]


@pytest.mark.parametrize("url", ["http://h/a b", "http://h/é", "http://h/\x00"])
def test_no_url_reaches_beyond_its_place_in_the_request(url: str) -> None:
    with pytest.raises(HeadwayError, match="url"):
        Endpoint.parse(url)


@pytest.mark.parametrize("url", ["http://h\r\nX: 1", "http://h:8000/v1\r\nX: 1"])
def test_a_line_end_in_a_url_starts_no_header(url: str) -> None:
    try:
        request = Endpoint.parse(url).request("GET", "/v1/models")
    except HeadwayError:
        return
    assert not any(line.startswith(b"X:") for line in request.split(b"\r\n"))


@pytest.mark.parametrize("key", ["a\r\nX: 1", "ключ", "a b"])
def test_a_key_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(HeadwayError, match="api_key"):
        Endpoint.parse("http://h", key)
