"""``headway bench flood``: what is asked, what is refused, and what is left of it."""

from __future__ import annotations

import asyncio

import pytest

from bench.floods.live import Asker
from bench.floods.offered import (
    FLOODER,
    OTHERS,
    PROMPT,
    FirstTokens,
    Flood,
    FloodRequest,
    flood_row,
)
from bench.floods.simulated import FloodedCluster, first_tokens
from headway.errors import HeadwayError

TOKEN = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Answering:
    """A server on loopback that answers all, or nobody."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self.num_heard = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._heard, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.num_heard += 1
        if self._answers:
            writer.write(HEAD + TOKEN + END)
            await writer.drain()
            writer.close()
        else:
            await reader.read(-1)  # until the client leaves
            writer.close()

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()


def asker(url: str) -> Asker:
    return Asker(url, "model", Flood("none"), dict.fromkeys((*OTHERS, FLOODER), "key"))


async def test_outcomes_are_told_by_side() -> None:
    server = Answering(answers=True)
    found = await asker(await server.start()).ask(
        [FloodRequest(OTHERS[0], 0, 0.0, PROMPT), FloodRequest(FLOODER, 0, 0.0, PROMPT)]
    )
    await server.stop()
    assert {side: len(each) for side, each in found.items()} == {"a": 1, "b": 0, "c": 1}
    assert all(each.times is not None for side in ("a", "c") for each in found[side])


async def test_a_run_that_is_called_off_leaves_nobody_asking() -> None:
    server, before = Answering(answers=False), asyncio.all_tasks()
    asked = [FloodRequest(side, n, 0.0, PROMPT) for side in (*OTHERS, FLOODER) for n in range(2)]
    running = asyncio.create_task(asker(await server.start()).ask(asked))
    async with asyncio.timeout(60):
        while server.num_heard < len(asked):
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    asking = [task for task in asyncio.all_tasks() - before if "Replay" in repr(task)]
    assert asking == []
    await server.stop()


def test_a_load_of_nobody_says_what_to_give() -> None:
    with pytest.raises(HeadwayError, match=r"none of the others asked .* more --load, --seconds"):
        flood_row(0, [FirstTokens([], 1.0), FirstTokens([], 0.0)])


def test_a_flood_that_keeps_others_from_their_answers_has_no_figures() -> None:
    cluster = FloodedCluster(num_prefill=1, num_decode=1, patience=1.0)
    with pytest.raises(HeadwayError, match=r"\d+ of \d+ requests of the others failed: give a sm"):
        first_tokens(cluster, Flood(seconds=2.0), 8000)
