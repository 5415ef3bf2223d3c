"""A stream's long event is written as fast as its client reads, and what is behind it waits."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ReplyStyle
from services.gateway.openai import replies
from services.gateway.openai.json import CallIdentity
from services.gateway.openai.replies import StreamReply
from services.gateway.slices import Slices
from services.gateway.tokenizer import TextCodec
from tests.fakes.gateway_harness import cluster, until


@dataclass
class Client:
    """The exchange with a client that reads, or does not."""

    is_read_slowly: bool = False
    on_gone: Callable[[], None] | None = None
    started: bool = True
    ended: bool = False
    got: list[str] = field(default_factory=list)

    def write(self, data: bytes, *, last: bool = False) -> None:
        self.got.append(data.decode())
        self.ended = last

    def add_header(self, name: str, value: str) -> None:
        raise AssertionError("it has started")

    def respond(self, status: int, content_type: str, body: bytes) -> None:
        raise AssertionError("it has started")

    def start(self, status: int, content_type: str) -> None:
        raise AssertionError("it has started")

    def abort(self) -> None:
        self.ended = True

    @property
    def text(self) -> str:
        return "".join(self.got)


def reply_to(client: Client) -> StreamReply:
    identity = CallIdentity("cmpl-1", "tiny", 0, "fp", chat=False)
    style, codec = ReplyStyle(chat=False, stream=True), cast("TextCodec", None)  # nothing is read
    reply = StreamReply(client, identity, style, codec, lambda outputs, error: None)
    reply.slices = Slices()
    return reply


def long_event() -> Iterator[str]:
    """An event that takes several turns to write."""
    yield from ("x" * 2**14 for _ in range(5))
    yield "\n"


async def test_an_event_behind_a_long_one_waits_for_it() -> None:
    client = Client()
    reply = reply_to(client)
    reply._write(long_event(), last=False, is_long=True)
    reply._write(iter(("second\n",)), last=False, is_long=False)
    reply._write(iter(("third\n",)), last=True, is_long=False)
    assert not client.got
    await until(lambda: client.ended)
    assert [len(line) for line in client.text.split("\n")] == [5 * 2**14, 6, 5, 0]
    assert max(map(len, client.got)) <= 2**14 + 1


async def test_an_error_comes_behind_what_waits() -> None:
    client = Client()
    reply = reply_to(client)
    reply._write(long_event(), last=False, is_long=True)
    for _ in range(2):  # of two outputs; the client is told once
        reply.fail(HeadwayError(Code.INTERNAL, "a bug"))
    await until(lambda: client.ended)
    whole, error = client.text.split("\n", 1)
    assert len(whole) == 5 * 2**14
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "a bug"


async def test_nothing_is_written_while_its_client_does_not_read() -> None:
    client = Client(is_read_slowly=True)
    reply_to(client)._write(long_event(), last=True, is_long=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not client.got
    client.is_read_slowly = False
    await until(lambda: client.ended)
    assert len(client.text) == 5 * 2**14 + 1


async def test_a_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_PATIENCE", 0.01)
    client = Client(is_read_slowly=True)
    reply_to(client)._write(long_event(), last=True, is_long=True)
    await until(lambda: client.ended)
    assert not client.got


async def read_slowly(port: int, fields: dict[str, Any]) -> bytes:
    """The answer to a request, by a client with little room for it."""
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_connect(ours, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=ours, limit=4096)
        body = json.dumps(fields).encode()
        head = "POST /v1/completions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json"
        writer.write(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while piece := await reader.read(4096):
            answer += piece
            await asyncio.sleep(0)
        writer.close()
    return answer.partition(b"\r\n\r\n")[2]


async def test_a_prompt_with_its_scores_may_be_longer_than_what_may_wait_unread(
    tmp_path: Path, store_url: str
) -> None:
    prompt = "abc" * 500
    fields: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "n": 2}
    fields |= {"stream": True, "echo": True, "logprobs": 20}
    async with cluster(tmp_path, store_url, max_unsent_bytes=2**16) as running:
        answer = await read_slowly(running.port, fields)
    *events, end, _ = answer.decode().split("\n\n")
    assert end == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    for index in range(2):
        found = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(each["text"] for each in found) == prompt + "ab"
        assert found[-1]["finish_reason"] == "length"
        told = [each["logprobs"] for each in found if each["logprobs"]]
        assert [token for each in told for token in each["tokens"]] == [*prompt, "a", "b"]
        assert [place for each in told for place in each["text_offset"]] == [*range(1502)]
        scores = [score for each in told for score in each["token_logprobs"]]
        assert scores == [None, *[-0.5] * 1501]
        assert [len(top) for top in told[0]["top_logprobs"][1:1500]] == [20] * 1499
