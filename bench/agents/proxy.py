"""A reverse proxy that hashes sessions to backends: what many put in front of several engines.

A request goes to the backend that rendezvous hashing gives its ``x-session-id``, else the first
kilobyte of its messages. Server-sent events pass as they come.

    python -m bench.agents.proxy --port 8900 http://127.0.0.1:8000 http://127.0.0.1:8010
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Mapping
from hashlib import blake2b

import uvloop
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from bench.agents.loop import SESSION_HEADER

_KEY_BYTES = 1024
_MOST_BODY_BYTES = 64 * 2**20
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te"}


def key_of(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return what tells a request's session: its name, else how its messages begin."""
    if name := headers.get(SESSION_HEADER):
        return name.encode()
    try:
        asked = json.loads(body)
        messages = asked.get("messages", asked.get("prompt", ""))
    except (ValueError, AttributeError):
        return body[:_KEY_BYTES]
    return json.dumps(messages).encode()[:_KEY_BYTES]


def place_of(key: bytes, num_backends: int) -> int:
    """Return the backend with the highest hash: when one goes, only its own sessions move."""
    return max(range(num_backends), key=lambda place: blake2b(b"%d " % place + key).digest())


class HashingProxy:
    """The proxy in front of some base URLs."""

    def __init__(self, backends: list[str]) -> None:
        self._backends = backends
        self._client: ClientSession

    async def serve(self, port: int, stopping: asyncio.Event) -> None:
        """Serve on loopback until it is stopped."""
        app = web.Application(client_max_size=_MOST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as client:
            self._client = client
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await stopping.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        place = place_of(key_of(request.headers, body), len(self._backends))
        url = self._backends[place] + str(request.rel_url)
        headers = _end_to_end(request.headers)
        try:
            reply = await self._client.request(request.method, url, data=body, headers=headers)
        except ClientError as error:
            return web.json_response({"error": {"message": f"{url}: {error}"}}, status=502)
        async with reply:
            response = web.StreamResponse(status=reply.status, headers=_end_to_end(reply.headers))
            await response.prepare(request)
            async for data in reply.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _main(port: int, backends: list[str]) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await HashingProxy(backends).serve(port, stopping)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("backends", nargs="+")
    given = parser.parse_args()
    uvloop.run(_main(given.port, given.backends))
