"""An OpenAI backend without a model: what stands behind a gateway while its own cost is measured.

Answers chat completions with ``max_tokens`` made-up tokens, streamed or whole; every running stream
gets one token a pass, as from a worker. Also what routers ask of a backend before they use it.

    python -m bench.gateway.mock_backend --port 8900 --delay-ms 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvloop

MODEL = "headway-mini"
DEFAULT_TOKENS = 16
MOST_TOKENS = 1_000_000
_HEAD = {"id": "chatcmpl-mock", "created": 1, "model": MODEL}


def _chunk(choice: dict[str, Any] | None, usage: dict[str, int] | None = None) -> bytes:
    event = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice] if choice else []}
    event |= {"usage": usage} if usage else {}
    return _framed(b"data: " + json.dumps(event).encode() + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_OPENING = _chunk({"index": 0, "delta": {"role": "assistant", "content": ""}})
_TOKEN = _chunk({"index": 0, "delta": {"content": " tok"}, "finish_reason": None})
_LAST = _chunk({"index": 0, "delta": {}, "finish_reason": "length"})
_DONE = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _whole(body: dict[str, Any], status: bytes = b"200 OK") -> bytes:
    content = json.dumps(body).encode()
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(content)) + content


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 8, "completion_tokens": num_tokens, "total_tokens": 8 + num_tokens}


_MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "owned_by": "mock", "max_model_len": 2**20}],
}
_INFO = {"model_path": MODEL, "served_model_name": MODEL, "tokenizer_path": "", "tp_size": 1}
_PAGES = {
    "/v1/models": _whole(_MODELS),
    "/model_info": _whole(_INFO),
    "/get_model_info": _whole(_INFO),
    "/server_info": _whole(_INFO),
    "/get_server_info": _whole(_INFO),
    "/health": _whole({"status": "ok"}),
    "/health_generate": _whole({"status": "ok"}),
    "/version": _whole({"version": "0"}),
}
_NOT_FOUND = _whole({"error": {"message": "no such page", "code": 404}}, b"404 Not Found")


class Passes:
    """Passes that give every running stream one token each, ``delay`` seconds apart."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._running: dict[MockConnection, int] = {}
        self._armed = False

    def add(self, connection: MockConnection, num_tokens: int) -> None:
        """Add a stream of so many tokens."""
        self._running[connection] = num_tokens
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._pass)

    def drop(self, connection: MockConnection) -> None:
        """Stop: the client has gone."""
        self._running.pop(connection, None)

    def _pass(self) -> None:
        for connection, left in list(self._running.items()):
            if left > 1:
                self._running[connection] = left - 1
                connection.write(_TOKEN)
            else:
                del self._running[connection]
                connection.finish()
        loop = asyncio.get_running_loop()
        self._armed = bool(self._running)
        if self._armed and self._delay > 0.0:
            loop.call_later(self._delay, self._pass)
        elif self._armed:
            loop.call_soon(self._pass)


class MockConnection(asyncio.Protocol):
    """A client's connection, one request after another."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._num_tokens = 0
        self._wants_usage = False
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's."""
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio's."""
        self._passes.drop(self)

    def data_received(self, data: bytes) -> None:
        """Asyncio's."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        """Take the path; called by the parser."""
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; called by the parser."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer; called by the parser."""
        path = self._url.partition(b"?")[0].decode("latin-1")
        if not path.endswith("/chat/completions"):
            self.write(_PAGES.get(path, _NOT_FOUND))
            return
        asked = json.loads(self._body)
        count = asked.get("max_tokens") or asked.get("max_completion_tokens") or DEFAULT_TOKENS
        self._num_tokens = max(1, min(int(count), MOST_TOKENS))
        if not asked.get("stream"):
            self.write(_whole_answer(self._num_tokens))
            return
        self._wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self.write(_STREAM_HEAD + _OPENING)
        self._passes.add(self, self._num_tokens)

    def finish(self) -> None:
        """Write the last token and what follows it at once."""
        usage = _chunk(None, _usage(self._num_tokens)) if self._wants_usage else b""
        self.write(_TOKEN + _LAST + usage + _DONE)


def _whole_answer(num_tokens: int) -> bytes:
    message = {"role": "assistant", "content": " tok" * num_tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return _whole(
        {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(num_tokens)}
    )


async def _serve(port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    passes = Passes(delay)
    server = await loop.create_server(
        lambda: MockConnection(passes), "127.0.0.1", port, backlog=1024
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    print(f"mock backend at 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="an OpenAI backend without a model"
    )
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="between passes")
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.port, arguments.delay_ms / 1000))
