"""Servers for the benchmark's client: the mock backend's process, and one that says bytes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def mock_backend(*flags: str) -> Iterator[str]:
    """The base URL of a fresh mock backend."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gateway.mock_backend", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the mock backend did not start"
        yield f"http://{line.split()[-1]}"
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def saying(*replies: bytes) -> AsyncIterator[str]:
    """The base URL of a server that says one reply a request and hangs up after the last.

    An empty reply is none at all: the connection stays silent.
    """
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                await _read_body(reader, head)
                reply = left.pop(0)
                if not reply:
                    await reader.read()
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> None:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


def reply(body: bytes, *, status: str = "200 OK", kind: str = "text/event-stream") -> bytes:
    """A whole response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
