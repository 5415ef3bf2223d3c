"""gRPC in memory behaves as gRPC does where the services look: each test runs on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import pytest

from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.network import MemoryNetwork
from proof.vopr.rpc import Ports

METHOD = "/test.Echo/Talk"
Talk = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
Test = Callable[[Any, Any], Awaitable[Any]]


def handlers(talk: Talk) -> Any:
    kind: Any = grpc.stream_stream_rpc_method_handler
    kinds = {"Talk": kind(talk, bytes, bytes)}
    return grpc.method_handlers_generic_handler("test.Echo", kinds)


async def _with(talk: Talk, test: Test) -> Any:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(talk),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = await test(channel.stream_stream(METHOD, bytes, bytes), server)
    await server.stop(0)
    return found


def in_memory(talk: Talk, test: Test) -> Any:
    loop = VirtualLoop()
    wires = MemoryNetwork(loop, Random(1), lambda state: None, lambda what: None)

    async def work() -> Any:
        return await loop.start(ProcessLife(loop, "both"), _with(talk, test))

    with Ports(wires).instead_of_grpc():
        return loop.run_until_complete(work())


def on_sockets(talk: Talk, test: Test) -> Any:
    return asyncio.run(_with(talk, test))


@pytest.fixture(params=[in_memory, on_sockets])
def on(request: pytest.FixtureRequest) -> Any:
    return request.param


async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await context.abort(grpc.StatusCode.NOT_FOUND, "no", (("why", "because"),))


async def fail(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    raise ValueError
    yield b""


async def read_all(call: Any) -> tuple[list[bytes], Any]:
    read: list[bytes] = []
    try:
        while (reply := await call.read()) is not grpc.aio.EOF:
            read.append(reply)
    except grpc.aio.AioRpcError as error:
        return read, (error.code().name, dict(error.trailing_metadata() or ()).get("why"))
    return read, None


def test_messages_come_back_in_order_and_the_call_ends(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        call = talk()
        for n in range(5):
            await call.write(b"%d" % n)
        await call.done_writing()
        return await read_all(call)

    assert on(echo, test) == ([b"0", b"1", b"2", b"3", b"4"], None)


def test_a_refusal_comes_after_what_was_sent_before_it(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        return await read_all(talk())

    assert on(refuse, test) == ([b"first"], ("NOT_FOUND", "because"))


def test_an_error_of_the_handler_is_unknown_to_the_caller(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        return await read_all(talk())

    assert on(fail, test) == ([], ("UNKNOWN", None))


@pytest.mark.parametrize("has_asked_all", [False, True])
def test_a_cancelled_call_cancels_its_handler_and_its_reader(on: Any, has_asked_all: bool) -> None:
    ended: list[str] = []

    async def wait(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"here"
            await asyncio.sleep(100)
        finally:
            ended.append("handler")

    async def test(talk: Any, server: Any) -> Any:
        call = talk()
        first = await call.read()
        if has_asked_all:
            await call.done_writing()
            await asyncio.sleep(0.1)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call.read()
            ended.append("reader was not told")
        for _ in range(500):
            if ended:
                break
            await asyncio.sleep(0.01)
        return first, call.done(), call.cancelled()

    assert on(wait, test) == (b"here", True, True)
    assert ended == ["handler"]


def test_nothing_is_written_to_a_call_that_has_ended(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        call = talk()
        await read_all(call)
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")

    on(refuse, test)


def test_without_a_server_a_call_fails_and_one_that_waits_does_not(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            call: Any = channel.stream_stream(METHOD, bytes, bytes)
            outcome = await read_all(call())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await channel.channel_ready()
            return outcome

    assert on(echo, test) == ([], ("UNAVAILABLE", None))


def test_a_sender_waits_for_a_reader_that_does_not_read(on: Any) -> None:
    async def idle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await asyncio.sleep(100)
        yield b""

    async def test(talk: Any, server: Any) -> int:
        call, num_sent = talk(), 0
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:
                    await call.write(bytes(2**16))
                    num_sent += 1
        return num_sent

    assert on(idle, test) < 200


def test_a_server_that_stops_breaks_its_calls(on: Any) -> None:
    async def test(talk: Any, server: Any) -> Any:
        call = talk()
        await call.write(b"a")
        assert await call.read() == b"a"
        await server.stop(0)
        return (await read_all(call))[1][0]

    assert on(echo, test) in ("UNAVAILABLE", "CANCELLED")
