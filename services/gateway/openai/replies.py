"""Answers over HTTP: one JSON body, or server-sent events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headway.errors import HeadwayError
from services.gateway.api_call import ReplyStyle
from services.gateway.openai.json import (
    CallIdentity,
    ChunkWriter,
    LogprobsWriter,
    Usage,
    chat_choice,
    completion_choice,
    dumps,
    error_body,
    status_of,
)
from services.gateway.output_text import Piece
from services.gateway.outputs import Output
from services.gateway.tokenizer import TextCodec

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"

LetGo = Callable[[Sequence[Output]], None]


class ResponseWriter(Protocol):
    """The part of an HTTP exchange that a reply needs."""

    on_gone: Callable[[], None] | None
    started: bool

    def add_header(self, name: str, value: str) -> None:
        """Send this header with the response."""

    def respond(self, status: int, content_type: str, body: bytes) -> None:
        """Send the whole response."""

    def start(self, status: int, content_type: str) -> None:
        """Begin a response of unknown length."""

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Send some of a started response."""

    def abort(self) -> None:
        """Drop a client that cannot be answered; do nothing after an answer."""


@dataclass(eq=False)
class _HttpReply:
    """The base of both kinds of reply. ``outputs`` is filled before the first token."""

    exchange: ResponseWriter
    identity: CallIdentity
    style: ReplyStyle
    codec: TextCodec
    let_go: LetGo
    outputs: list[Output] = field(default_factory=list, init=False)
    num_prompt_tokens: int = field(default=0, init=False)
    ended: bool = field(default=False, init=False)
    _num_ended: int = field(default=0, init=False)
    _logprobs: dict[int, LogprobsWriter] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.exchange.on_gone = self._gone
        self.keeps_tokens = self.style.logprobs or self.style.return_token_ids
        self.streams = self.style.stream

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=sum(o.text.num_tokens for o in self.outputs),
            reasoning_tokens=sum(o.text.num_reasoning_tokens for o in self.outputs),
            cached_tokens=sum(o.num_cached_tokens for o in self.outputs),
        )

    def _logprobs_of(self, index: int) -> LogprobsWriter:
        writer = self._logprobs.get(index)
        if writer is None:
            writer = LogprobsWriter(self.codec, chat=self.style.chat)
            self._logprobs[index] = writer
        return writer

    def _end(self) -> bool:
        """Count an output that ended; return whether it was the last one."""
        self._num_ended += 1
        self.ended = self._num_ended == len(self.outputs)
        return self.ended

    def fail(self, error: HeadwayError) -> None:
        """Answer with the error, once; let the other outputs go."""
        if self.ended:
            return
        self.ended = True
        error.param = self.style.param(error.param)
        try:
            if self.exchange.started:
                self.exchange.write(f"data: {error_body(error)}\n\n".encode(), last=True)
            else:
                respond_error(self.exchange, error)
        finally:
            self.exchange.abort()  # does nothing after an answer
            self.let_go(self.outputs)

    def _gone(self) -> None:
        self.ended = True
        self.let_go(self.outputs)


class StreamReply(_HttpReply):
    """A reply as server-sent events; the status line waits for the first token or a refusal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chunks = ChunkWriter(self.identity, include_usage=self.style.include_usage)
        self._opened: set[int] = set()

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Write one event, followed by the call's last ones where it ends."""
        index = output.index
        extra = self._extra(output) if self.keeps_tokens else '"logprobs":null'
        event = self._chunks.text(index, piece, end, extra)
        if index not in self._opened:
            self._opened.add(index)
            if not self.exchange.started:
                self.exchange.start(200, EVENTS)
            if self.style.chat:
                event = self._chunks.opening(index) + event
        last = end is not None and self._end()
        if last:
            usage = self._chunks.usage(self._usage()) if self.style.include_usage else ""
            event = f"{event}{usage}data: [DONE]\n\n"
        self.exchange.write(event.encode(), last=last)

    def _extra(self, output: Output) -> str:
        token_ids, logprobs = output.take_tokens()
        extra = '"logprobs":null'
        if self.style.logprobs and token_ids:
            extra = (
                f'"logprobs":{dumps(self._logprobs_of(output.index).write(token_ids, logprobs))}'
            )
        if self.style.return_token_ids:
            extra += f',"token_ids":{dumps(token_ids)}'
        return extra


class WholeReply(_HttpReply):
    """A reply as one JSON body, sent when every output has ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pieces: dict[int, list[Piece]] = {}
        self._ends: dict[int, str] = {}

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Keep the piece; answer with the last one."""
        self._pieces.setdefault(output.index, []).append(piece)
        if end is not None:
            self._ends[output.index] = end
            if self._end():
                body = {
                    **self.identity.as_json(chunk=False),
                    "choices": [self._choice(o) for o in self.outputs],
                    "usage": self._usage().as_json(),
                }
                self.exchange.respond(200, JSON, dumps(body).encode())

    def _choice(self, output: Output) -> dict[str, object]:
        index = output.index
        pieces = self._pieces[index]
        piece = Piece("".join(p.reasoning for p in pieces), "".join(p.answer for p in pieces))
        token_ids, found = output.take_tokens()
        logprobs = None
        if self.style.logprobs:
            logprobs = self._logprobs_of(index).write(token_ids, found)
        if self.style.chat:
            reasoning = self.codec.markers is not None
            choice = chat_choice(index, piece, self._ends[index], logprobs, reasoning=reasoning)
        else:
            choice = completion_choice(index, piece.answer, self._ends[index], logprobs)
        if self.style.return_token_ids:
            choice["token_ids"] = token_ids
        return choice


HttpReply = StreamReply | WholeReply


def respond_error(
    exchange: ResponseWriter, error: HeadwayError, status: int = 0, code: str | None = None
) -> None:
    """Respond with an error; ``status`` and ``code`` are more exact than the error's own."""
    if error.retry_after > 0:
        exchange.add_header("retry-after", str(math.ceil(error.retry_after)))
    exchange.respond(status or status_of(error.code), JSON, error_body(error, code).encode())
