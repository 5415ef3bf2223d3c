"""A tiny OpenAI server for the benchmark's tests: real sockets, answers by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[dict[str, Any]], "Answer"]


@dataclass
class Answer:
    """What one request gets: events (a status other than 200 sends them as one body)."""

    events: Iterable[Any] = ()
    status: int = 200
    cut: bool = False  # hang up after the events
    hang: bool = False  # say no more after the events


def chat_event(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def end_event(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage_event(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {"choices": [], "usage": usage}


def answer_of(reasoning: str, content: str) -> Answer:
    """A whole streamed chat answer, a character an event."""
    events: list[Any] = [chat_event(role="assistant")]
    events += [chat_event(reasoning_content=each) for each in reasoning]
    events += [chat_event(content=each) for each in content]
    events += [end_event(), usage_event(7, len(reasoning) + len(content))]
    return Answer(events)


@dataclass
class BenchServer:
    """Answers ``reply(body)``; ``bodies`` and ``heads`` are what came."""

    reply: Reply
    models: Any = field(default_factory=lambda: {"data": [{"id": "tiny", "max_model_len": 64}]})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET"):
            self._whole(writer, 200, self.models)
            return True
        length = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        answer = self.reply(body)
        if answer.status != 200:
            self._whole(writer, answer.status, next(iter(answer.events), {}))
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in answer.events:
            self._chunk(writer, f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        if answer.hang:
            await reader.read()
        if answer.cut or answer.hang:
            return False
        self._chunk(writer, b"data: [DONE]\n\n")
        self._chunk(writer, b"")
        return True

    @staticmethod
    def _whole(writer: asyncio.StreamWriter, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@asynccontextmanager
async def bench_server(reply: Reply) -> AsyncIterator[BenchServer]:
    """On a free loopback port."""
    server = BenchServer(reply)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
