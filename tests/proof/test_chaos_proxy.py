"""The fault proxy: what passes, what waits, and what breaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from proof.chaos.proxy import Link, Proxy, Rules, find_dialler
from services.local.store import free_port

LINK: Link = ("us", "echo")
_PATIENCE = 60.0


@dataclass
class Echo:
    """A client of a service that says everything twice, through a proxy."""

    proxy: Proxy
    rules: Rules
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, text: bytes) -> None:
        self.writer.write(text)
        await self.writer.drain()

    async def hear(self, number: int) -> bytes:
        async with asyncio.timeout(_PATIENCE):
            return await self.reader.readexactly(number)


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while text := await reader.read(100):
            writer.write(text)
        writer.close()

    port, rules = free_port(2), Rules()
    server = await asyncio.start_server(serve, "127.0.0.1", port + 1)
    pids = {"us": os.getpid()}
    proxy = Proxy("echo", port, port + 1, rules, lambda local: find_dialler(local, pids))
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Echo(proxy, rules, reader, writer)
    finally:
        writer.close()
        await proxy.stop()
        server.close()


async def test_bytes_pass_as_they_are_and_the_dialler_is_found() -> None:
    async with echo() as client:
        await client.say(b"all that is said")
        assert await client.hear(16) == b"all that is said"
        (connection,) = client.proxy.connections
        assert await connection.find_link() == LINK


@pytest.mark.parametrize("forward", [True, False], ids=["to it", "back"])
async def test_a_partition_holds_bytes_until_it_ends(forward: bool) -> None:
    async with echo() as client:
        await client.say(b"1")
        assert await client.hear(1) == b"1"
        (connection,) = client.proxy.connections
        client.rules.held.add((await connection.find_link(), forward))
        await client.say(b"2")
        hearing = asyncio.create_task(client.hear(1))
        assert not (await asyncio.wait((hearing,), timeout=0.2))[0]
        client.rules.held.clear()
        client.rules.change()
        assert await hearing == b"2"


async def test_a_new_connection_of_a_link_that_is_cut_waits_too() -> None:
    async with echo() as client:
        await client.say(b"1")
        await client.hear(1)
        client.rules.held.add((LINK, True))
        port = client.writer.get_extra_info("peername")[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"2")
        hearing = asyncio.create_task(reader.readexactly(1))
        assert not (await asyncio.wait((hearing,), timeout=0.3))[0]
        client.rules.held.clear()
        client.rules.change()
        assert await hearing == b"2"
        writer.close()


async def test_a_reset_breaks_both_ends() -> None:
    async with echo() as client:
        await client.say(b"1")
        await client.hear(1)
        (connection,) = client.proxy.connections
        connection.reset()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.hear(1)


async def test_a_delay_lets_every_byte_through_in_order() -> None:
    async with echo() as client:
        client.rules.delays[LINK] = 0.01
        for _ in range(3):
            await client.say(b"0123456789")
        assert await client.hear(30) == b"0123456789" * 3
