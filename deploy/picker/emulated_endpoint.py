"""An emulated vLLM for tests and tables: OpenAI's paths, ``/metrics``, a prefix cache, no model.

One prompt is computed at a time, at so many seconds a token without those cached; requests that
decode get a token a step, and steps are slower the more of them there are. Tokens are four bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from aiohttp import web

BLOCK = 64


@dataclass
class Costs:
    """Seconds of a prompt token, of a decoding step, and what each request adds to a step."""

    token: float = 1e-4
    step: float = 0.01
    request: float = 0.0005
    cache_blocks: int = 4096
    draws_lengths: bool = False
    """True: an output ends by itself, as its prompt has it, unless ``ignore_eos`` forbids it."""


class EmulatedEndpoint:
    """One endpoint; ``app`` serves it."""

    def __init__(self, costs: Costs, name: str = "") -> None:
        self.costs, self.name = costs, name
        self.num_running = self.num_waiting = self.num_served = 0
        self.computed = self.hits = self.prompt = 0
        self.prefill_seconds = 0.0
        self.prompts = 0
        self.output = 0
        self.frozen = asyncio.Event()
        self.frozen.set()
        self.metrics_silent = False
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._device = asyncio.Lock()
        self.app = web.Application(client_max_size=1 << 30)
        self.app.router.add_get("/metrics", self._metrics)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_post("/reset_prefix_cache", self._forget)
        self.app.router.add_post("/{path:.*}", self._serve)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "emulated", "name": self.name}]}
        )

    async def _forget(self, request: web.Request) -> web.Response:
        self._cache.clear()
        return web.json_response({"success": True})

    async def _metrics(self, request: web.Request) -> web.Response:
        await self.frozen.wait()
        if self.metrics_silent:
            await asyncio.sleep(3600)
        lines = [
            f"vllm:num_requests_running {self.num_running}",
            f"vllm:num_requests_waiting {self.num_waiting}",
            f"vllm:prompt_tokens_total {self.prompt}",
            f"vllm:prefix_cache_hits_total {self.hits}",
            f"vllm:request_prefill_time_seconds_sum {self.prefill_seconds}",
            f"vllm:request_prefill_time_seconds_count {self.prompts}",
            f"vllm:generation_tokens_total {self.output}",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self.frozen.wait()
        asked = json.loads(body)
        try:
            await self._prefill(_text(asked))
            return await self._decode(request, asked, len(body))
        finally:
            self.num_served += 1

    async def _prefill(self, text: str) -> None:
        names, cached, name = [], 0, 0
        for at in range(0, len(text) // 4 - BLOCK + 1, BLOCK):
            name = hash((name, text[4 * at : 4 * (at + BLOCK)]))
            names.append(name)
        for name in names:
            if name not in self._cache:
                break
            cached += BLOCK
        uncached = max(1, len(text) // 4 - cached)
        self.num_waiting += 1
        try:
            await self._device.acquire()
        finally:
            self.num_waiting -= 1
        self.num_running += 1
        try:
            await asyncio.sleep(uncached * self.costs.token)
        finally:
            self.num_running -= 1
            self._device.release()
        for name in names:
            self._cache.pop(name, None)
            self._cache[name] = None
        while len(self._cache) > self.costs.cache_blocks:
            self._cache.popitem(last=False)
        self.prompt += uncached + cached
        self.hits += cached
        self.computed += uncached
        self.prefill_seconds += uncached * self.costs.token
        self.prompts += 1

    async def _decode(self, request: web.Request, asked: Any, size: int) -> web.StreamResponse:
        num_tokens = int(asked.get("max_tokens") or 16)
        if self.costs.draws_lengths and not asked.get("ignore_eos"):
            num_tokens = min(num_tokens, _length(_text(asked)))
        self.num_running += 1
        try:
            if not asked.get("stream"):
                await asyncio.sleep(num_tokens * self._step())
                self.output += num_tokens
                return web.json_response({"endpoint": self.name, "num_bytes": size})
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            for index in range(num_tokens):
                event = {"index": index, "endpoint": self.name, "num_bytes": size}
                await reply.write(f"data: {json.dumps(event)}\n\n".encode())
                self.output += 1
                await asyncio.sleep(self._step())
            await reply.write(b"data: [DONE]\n\n")
            return reply
        finally:
            self.num_running -= 1

    def _step(self) -> float:
        return self.costs.step + self.costs.request * self.num_running


def _text(asked: Any) -> str:
    if "messages" in asked:
        return "".join(f"{m.get('role')}{m.get('content')}" for m in asked["messages"])
    return str(asked.get("prompt", ""))


def _length(text: str) -> int:
    """Draw the length of a reasoning answer: half are below 150 tokens, one in twenty above 700."""
    return max(1, round(random.Random(text).lognormvariate(5.0, 0.95)))


async def start(
    endpoint: EmulatedEndpoint, port: int = 0, host: str = "127.0.0.1"
) -> tuple[web.AppRunner, int]:
    """Serve it; return what stops it, and its port."""
    runner = web.AppRunner(endpoint.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    return runner, runner.addresses[0][1]


async def _main(args: argparse.Namespace) -> None:
    costs = Costs(
        *(args.token_seconds, args.step_seconds, args.request_seconds, args.cache_blocks),
        args.draws_lengths,
    )
    await start(EmulatedEndpoint(costs, f"{args.host}:{args.port}"), args.port, args.host)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--token-seconds", type=float, default=1e-4)
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--request-seconds", type=float, default=0.0005)
    parser.add_argument("--cache-blocks", type=int, default=4096)
    parser.add_argument("--draws-lengths", action="store_true")
    asyncio.run(_main(parser.parse_args()))
