"""Requests over HTTP, so many at a time."""

from __future__ import annotations

import asyncio
import json

import httpx

PATIENCE = 300.0


async def ask(client: httpx.AsyncClient, number: int) -> int:
    """One streamed answer of a length of its own; its tokens."""
    body = {
        "model": "headway-mini",
        "prompt": f"Add {number}, 25, 8.",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 40 + 20 * (number % 4),
        "ignore_eos": True,
    }
    num_tokens, is_done = 0, False
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            assert '"error"' not in line, line
            is_done = is_done or line == "data: [DONE]"
            if line.startswith("data: {"):
                usage = json.loads(line.removeprefix("data: ")).get("usage")
                num_tokens = usage["completion_tokens"] if usage else num_tokens
    assert is_done
    assert num_tokens == body["max_tokens"]
    return num_tokens


class Load:
    """So many requests at a time, one after another, until told otherwise."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._wanted = 0
        self._asked: list[asyncio.Task[None]] = []
        self.num_answered = 0

    def at_a_time(self, number: int) -> None:
        self._wanted = number
        self._asked += [
            asyncio.create_task(self._ask(place)) for place in range(len(self._asked), number)
        ]

    async def _ask(self, place: int) -> None:
        while place < self._wanted:
            await ask(self._client, self.num_answered)
            self.num_answered += 1

    def check(self) -> None:
        """A request that failed fails the test now."""
        for task in self._asked:
            if task.done():
                task.result()

    async def end(self) -> None:
        self._wanted = 0
        await asyncio.gather(*self._asked)
