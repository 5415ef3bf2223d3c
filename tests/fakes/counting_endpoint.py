"""An OpenAI endpoint whose tokens are characters, and which remembers every prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from bench.agents.texts import num_shared

AROUND = 3  # tokens around each message


class CountingEndpoint:
    """What it was asked; it refuses prompts with ``refused`` in them."""

    def __init__(self, limit: int = 10_000) -> None:
        self.url = ""
        self.limit = limit
        self.refused = "\0"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self._prompts: list[bytes] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[CountingEndpoint]:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "counted", "max_model_len": self.limit}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = "".join(f"<{each['role']}>{each['content']}" for each in body["messages"])
        if self.refused in said:
            return web.json_response({"error": {"message": "refused"}}, status=400)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        prompt_tokens = sum(len(each["content"]) + AROUND for each in body["messages"])
        cached = max((num_shared(said.encode(), old) for old in self._prompts), default=0)
        self._prompts.append(said.encode())
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt_tokens - 1)},
        }
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        answer = "a" * body["max_tokens"]
        delta = {"delta": {"content": answer}, "finish_reason": "length"}
        for event in ({"choices": [delta]}, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
