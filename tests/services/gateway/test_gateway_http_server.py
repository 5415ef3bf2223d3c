"""The HTTP server: what it reads, what it refuses, and how it treats slow and absent clients."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from services.gateway.http.server import HttpServer, tls_context
from services.gateway.http.tls_listener import bound_sockets
from tests.fakes.http_rig import (
    LIMITS,
    MAX_CONNECTIONS,
    Client,
    EchoHandler,
    bounds,
    listening,
    post,
    until,
)


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with listening() as it:
        client = await it.client()
        for body in (b"a", b"", b"b" * 999):
            assert (await client.ask(post(body))).endswith(b"POST:" + body)


async def test_a_body_may_come_in_pieces_and_in_chunks() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.02)
        found = await client.ask(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        assert found.endswith(b"POST:abc")


async def test_pipelined_requests_are_answered_in_order_however_many() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold") + b"".join(post(b"%d" % i) for i in range(2000)))
        await until(lambda: bool(it.handler.held))
        it.handler.held[0].respond(200, "text/plain", b"held")
        assert (await client.response()).endswith(b"held")
        for i in range(2000):
            assert (await client.response()).endswith(b"POST:%d" % i)


async def test_requests_of_others_come_between_pipelined_ones() -> None:
    async with listening() as it:
        many, one = await it.client(), await it.client()
        many.writer.write(b"".join(post(b"%d" % i) for i in range(300)))
        one.writer.write(post(b"one"))
        assert (await one.response()).endswith(b"POST:one")
        assert len(it.handler.served) < 300
        for i in range(300):
            assert (await many.response()).endswith(b"POST:%d" % i)


async def test_a_stream_is_chunked_and_ends() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold"))
        await until(lambda: bool(it.handler.held))
        exchange = it.handler.held[0]
        exchange.start(200, "text/event-stream")
        exchange.write(b"one")
        exchange.write(b"two", last=True)
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(21) == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert (await client.ask(post(b"next"))).endswith(b"next")


async def test_http_1_0_gets_its_stream_unchunked_and_closed() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(b"POST /hold HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
        await until(lambda: bool(it.handler.held))
        it.handler.held[0].start(200, "text/event-stream")
        it.handler.held[0].write(b"one", last=True)
        assert (await client.rest()).endswith(b"\r\n\r\none")


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with listening() as it:
        client = await it.client()
        head = (
            b"POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
        )
        client.writer.write(head)
        assert b"100 Continue" in await client.reader.readuntil(b"\r\n\r\n")
        assert (await client.ask(b"x")).endswith(b"POST:x")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x16\x03garbage\r\n\r\n",
        b"GET /echo\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nhost h\r\n\r\n",
        b"GET /echo HTTP/1.1\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nhost: h\r\nx: y\r\nHost: i\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nhost: h\r\nhost: h\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nab\r\n",
        b"GET /echo HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_a_malformed_request_gets_400_and_the_server_goes_on(data: bytes) -> None:
    async with listening() as it:
        client = await it.client()
        found = await client.ask(data)
        assert found.startswith(b"HTTP/1.1 400 ")
        assert b'"error"' in found
        assert await it.works()


async def test_a_body_over_the_limit_gets_413_before_it_is_read() -> None:
    async with listening() as it:
        client = await it.client()
        found = await client.ask(b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 1001\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 413 ")
        assert b"1001" in found
        assert b"1000" in found
        client.writer.write(b"x" * 1001)  # … and it may still be on its way
        assert await it.works()


async def test_a_chunked_body_over_the_limit_gets_413() -> None:
    async with listening() as it:
        client = await it.client()
        head = b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
        found = await client.ask(head + b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert found.startswith(b"HTTP/1.1 413 ")


async def test_a_head_over_the_limit_gets_431() -> None:
    async with listening() as it:
        client = await it.client()
        found = await client.ask(b"GET /echo HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 3000)
        assert found.startswith(b"HTTP/1.1 431 ")


async def test_a_head_over_the_limit_gets_431_also_if_it_comes_in_one_read() -> None:
    async with listening() as it:
        long = b"POST /echo HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 2000 + b"\r\n\r\n"
        assert (await (await it.client()).ask(long)).startswith(b"HTTP/1.1 431 ")
        behind = await it.client()
        behind.writer.write(post(b"first") + long)
        assert (await behind.response()).endswith(b"POST:first")
        assert (await behind.response()).startswith(b"HTTP/1.1 431 ")
        assert await it.works()


async def test_many_short_heads_in_one_read_are_none_too_long() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(b"".join(post(b"%d" % i) for i in range(100)))
        for i in range(100):
            assert (await client.response()).endswith(b"POST:%d" % i)


async def test_who_is_screened_out_is_told_before_the_body_is_read() -> None:
    async with listening() as it:
        client = await it.client()
        found = await client.ask(b"POST /no HTTP/1.1\r\nhost: h\r\ncontent-length: 900\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"GET /echo HTTP/1.1\r\nhost:", b"head"),
        (b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nx", b"body"),
    ],
)
async def test_a_slow_request_gets_408_however_it_trickles(data: bytes, part: bytes) -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(data)
        for _ in range(3):
            await asyncio.sleep(0.05)
            client.writer.write(b"z")
        found = await client.response()
        assert found.startswith(b"HTTP/1.1 408 ")
        assert part in found
        assert await it.works()


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"GET /echo HTTP/1.1\r\nhost:", b"head"),
        (b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nx", b"body"),
    ],
)
@pytest.mark.parametrize("first", [b"/hold", b"/echo"], ids=["answered later", "answered at once"])
async def test_a_slow_request_behind_another_in_the_same_read_gets_408(
    data: bytes, part: bytes, first: bytes
) -> None:
    limits = replace(LIMITS, idle_timeout=60.0)
    async with listening(limits) as it:
        client = await it.client()
        client.writer.write(post(b"", first) + data)
        if first == b"/hold":
            await until(lambda: bool(it.handler.held))
            it.handler.held[0].respond(200, "text/plain", b"held")
        await client.response()
        found = await client.response()
        assert found.startswith(b"HTTP/1.1 408 ")
        assert part in found


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with listening() as it:
        client = await it.client()
        assert await client.rest() == b""
        client = await it.client()
        await client.ask(post(b"x"))
        assert await client.rest() == b""


async def test_a_pipelined_request_does_not_cut_the_answer_before_it() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold") + post(b"next"))
        await until(lambda: bool(it.handler.held))
        await asyncio.sleep(2 * LIMITS.body_timeout)
        it.handler.held[0].respond(200, "text/plain", b"held")
        assert (await client.response()).endswith(b"held")
        assert (await client.response()).endswith(b"next")


async def test_an_answer_that_never_comes_ends_with_the_connection() -> None:
    async with listening(replace(LIMITS, answer_timeout=0.3)) as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold"))
        assert await client.rest() == b""
        await until(lambda: not it.server.connections)


@pytest.mark.parametrize(
    "data",
    [
        post(b"x" * 900)[:-1],
        b"GET /echo HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 500,
        post(b"", b"/hold") + post(b"x" * 900),
        post(b"", b"/no"),
        b"garbage\r\n\r\n",
    ],
)
async def test_a_client_that_has_left_leaves_nothing_for_the_garbage_collector(data: bytes) -> None:
    async with listening() as it:
        gc.collect()
        gc.disable()
        try:
            client = await it.client()
            await until(lambda: bool(it.server.connections))
            left = [weakref.ref(connection) for connection in it.server.connections]
            client.writer.write(data)
            await asyncio.sleep(0.05)
            client.writer.transport.abort()
            del client
            await until(lambda: not it.server.connections)
            it.handler.held.clear()
            await asyncio.sleep(0.01)
            assert [ref() for ref in left] == [None]
        finally:
            gc.enable()


async def test_one_connection_too_many_gets_503_and_is_welcome_later() -> None:
    async with listening() as it:
        clients = [await it.client() for _ in range(MAX_CONNECTIONS)]
        for client in clients:
            await client.ask(post(b"x"))
        found = await (await it.client()).response()
        assert found.startswith(b"HTTP/1.1 503 ")
        for client in clients:
            client.writer.close()
        await until(lambda: not it.server.connections)
        assert await it.works()


async def test_a_client_that_leaves_is_noticed_at_once() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold"))
        await until(lambda: bool(it.handler.held))
        client.writer.close()
        await until(lambda: it.handler.num_gone == 1)
        it.handler.held[0].start(200, "text/plain")
        it.handler.held[0].write(b"to nobody", last=True)
        assert await it.works()


async def test_a_client_that_does_not_read_is_cut_off_with_little_buffered() -> None:
    async with listening() as it:
        client = await it.client()
        client.writer.write(post(b"", b"/hold"))
        await until(lambda: bool(it.handler.held))
        exchange = it.handler.held[0]
        exchange.start(200, "text/event-stream")
        num_sent = 0
        while it.handler.num_gone == 0:
            assert num_sent < 16_000, "16 MB were buffered for a client that does not read"
            exchange.write(b"x" * 1000)
            num_sent += 1
            await asyncio.sleep(0)
        assert it.handler.num_cut_off == 1
        assert await it.works()


async def test_draining_lets_the_answer_finish_and_takes_nothing_new() -> None:
    async with listening() as it:
        idle, client = await it.client(), await it.client()
        client.writer.write(post(b"", b"/hold"))
        await until(lambda: bool(it.handler.held))
        drained = asyncio.create_task(it.server.drain(10))
        assert await idle.rest() == b""
        with pytest.raises(OSError, match="Connect"):
            await it.client()
        assert not drained.done()
        it.handler.held[0].respond(200, "text/plain", b"done")
        assert (await client.rest()).endswith(b"done")
        await asyncio.wait_for(drained, 10)


async def test_a_taken_port_is_not_shared_silently() -> None:
    async with listening() as it:
        with pytest.raises(OSError, match="in use"):
            await HttpServer(EchoHandler(), LIMITS, bounds()).start("127.0.0.1", it.port)


async def test_it_speaks_tls_with_the_files_it_is_given(certificate: tuple[Path, Path]) -> None:
    server = HttpServer(EchoHandler(), LIMITS, bounds())
    _, port = await server.start("127.0.0.1", 0, tls_context(*certificate))
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=trust))
    assert (await client.ask(post(b"x"))).endswith(b"POST:x")
    plain = Client(*await asyncio.open_connection("127.0.0.1", port))
    plain.writer.write(post(b"x"))
    assert b"POST:x" not in await plain.rest()
    server.stop()


async def test_a_tls_connection_takes_its_place_before_it_shakes_hands(
    certificate: tuple[Path, Path],
) -> None:
    shared = bounds(0.5)  # of 20
    server = HttpServer(EchoHandler(), LIMITS, shared)
    _, port = await server.start("127.0.0.1", 0, tls_context(*certificate))
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(16)]
    await until(lambda: shared.connections.num_taken == 10)
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    other = asyncio.open_connection("127.0.0.1", port, ssl=trust, local_addr=("127.0.0.2", 0))
    client = Client(*await other)
    assert (await client.ask(post(b"x"))).endswith(b"POST:x")
    client.writer.close()
    await until(lambda: shared.connections.num_taken == 0)  # after the time for a handshake
    assert [await reader.read() for reader, _ in silent] == [b""] * 16
    server.stop()


async def test_addresses_of_a_family_that_the_machine_lacks_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        lacking, there = (255, "::1"), (socket.AF_INET, "127.0.0.1")
        return [(family, socket.SOCK_STREAM, 6, "", (host, 0)) for family, host in (lacking, there)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    (bound,) = await bound_sockets("localhost", 0, 1)
    assert bound.getsockname()[0] == "127.0.0.1"
    bound.close()
