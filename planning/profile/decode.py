"""V_D: a decoder with more and more requests of one kind at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.errors import Code, HeadwayError
from headway.messages import FinishedRequest, KvHeader
from headway.request import Request, StreamKey
from planning.profile.link import TIMEOUT
from planning.profile.plan import RequestSize
from planning.profile.workers import Bench

_LEAST_PASSES = 16
_SETTLING = 0.2  # share of a step, before it counts
_PAUSE = 0.02  # s, until a decoder without room is asked again
_MOST_ON_THE_WAY = 4


class Population:
    """Requests of one kind in the decoder; each that ends is followed by another.

    Their prompts come computed, as from a prefiller with time to spare.
    """

    def __init__(self, bench: Bench, kind: RequestSize, like: KvHeader) -> None:
        self._bench, self._kind, self._like = bench, kind, like
        self._tasks: list[asyncio.Task[None]] = []
        self._open: dict[int, StreamKey] = {}
        self._on_the_way = asyncio.Semaphore(_MOST_ON_THE_WAY)
        self._is_closing = False

    @property
    def size(self) -> int:
        """Requests at a time."""
        return len(self._tasks)

    async def grow(self, number: int) -> None:
        """Wait until so many run, of all ages."""
        places = range(self.size, number)
        ends = await asyncio.gather(*(self._enter(n, self._kind.aged(n)) for n in places))
        self._tasks += [
            asyncio.create_task(self._stay(place, ended))
            for place, ended in zip(places, ends, strict=True)
        ]

    async def _stay(self, place: int, ended: asyncio.Future[FinishedRequest]) -> None:
        while True:
            await ended
            self._open.pop(place, None)
            if self._is_closing:
                return
            ended = await self._enter(place, self._kind)

    async def _enter(self, place: int, kind: RequestSize) -> asyncio.Future[FinishedRequest]:
        request = self._bench.request(kind, is_prefilled=True)
        ended = self._bench.decoder.ended(request.key)
        async with self._on_the_way:
            await self._give(request)
        self._open[place] = request.key
        return ended

    async def _give(self, request: Request) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    return await self._bench.decoder.give_kv(request, self._like)
                except HeadwayError as error:
                    if error.code is not Code.RESOURCE_EXHAUSTED:
                        raise
                await asyncio.sleep(_PAUSE)

    def check(self) -> None:
        """Raise HeadwayError where a request could not go on."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        """Cancel what runs; return when the decoder is empty."""
        self._is_closing = True
        async with asyncio.timeout(TIMEOUT):
            while any(not task.done() for task in self._tasks):
                await self._bench.decoder.cancel(list(self._open.values()))
                await asyncio.wait(self._tasks, timeout=0.1)

    def abandon(self) -> None:
        """Something failed: wait for nothing."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def population(bench: Bench, kind: RequestSize, like: KvHeader) -> AsyncIterator[Population]:
    """None at first; gone at the end."""
    people = Population(bench, kind, like)
    try:
        yield people
        await people.close()
    finally:
        people.abandon()


async def generated_per_s(bench: Bench, people: Population, seconds: float) -> float:
    """Tokens/s that the decoder generates, over ``seconds`` and 16 passes at least."""
    await _passed(bench, people, _SETTLING * seconds, 1)
    loop, front = asyncio.get_running_loop(), bench.front
    started_at, num_tokens = loop.time(), front.num_tokens
    await _passed(bench, people, seconds, _LEAST_PASSES)
    return (front.num_tokens - num_tokens) / (loop.time() - started_at)


async def _passed(bench: Bench, people: Population, seconds: float, num_passes: int) -> None:
    """Return right after a pass, when so much time and so many of them have gone by."""
    loop, front = asyncio.get_running_loop(), bench.front
    until, num_batches = loop.time() + seconds, front.num_batches + num_passes
    async with asyncio.timeout(seconds + TIMEOUT):
        while loop.time() < until or front.num_batches < num_batches:
            await front.next_batch()
            people.check()
