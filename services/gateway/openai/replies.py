"""Answers over HTTP: one JSON body, or server-sent events."""

from __future__ import annotations

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any, Protocol

from headway.core.gateway.shares import Account
from headway.errors import Code, HeadwayError
from headway.life.form import timings
from headway.life.record import LifeRecord
from headway.request import TokenLogprobs
from services.gateway.api_call import ReplyStyle
from services.gateway.openai.json import (
    UNSCORED,
    CallIdentity,
    ChunkWriter,
    LogprobsWriter,
    Usage,
    chat_choice,
    dumps,
    error_body,
    prompt_parts,
    status_of,
    text_parts,
)
from services.gateway.output_text import NOTHING, Piece
from services.gateway.outputs import Output
from services.gateway.slices import Slices
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import CallPiece

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"

_TOKEN_BYTES, _RANK_BYTES = 100, 76
"""Memory of a token's log probabilities, and of each rank among them."""
_FEW_BYTES = 2**16
"""Memory of log probabilities that are written at once: a millisecond or two."""
_ECHOED_AT_ONCE = 256
"""Tokens of a prompt."""
_WRITTEN_AT_ONCE = 2**14
"""Characters of a stream that is written in parts."""
_SHORTEST_PAUSE, _LONGEST_PAUSE, _PATIENCE = 0.001, 0.1, 30.0
"""Seconds between looks at whether its client reads on, and until it is dropped."""
_UNPRINTABLE = re.compile(r"[^ -~]")

FindLife = Callable[[str], LifeRecord | None]
"""A function that returns the life of a request, by its id."""
LetGo = Callable[[Sequence[Output], HeadwayError | None], None]
"""A function that stops outputs; the error is what their call failed with, None: its client left.
"""


class ResponseWriter(Protocol):
    """The part of an HTTP exchange that a reply needs."""

    on_gone: Callable[[], None] | None
    started: bool
    ended: bool

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

    @property
    def is_read_slowly(self) -> bool:
        """True while its client has not read what was written."""


@dataclass(eq=False)
class HttpReplyBase:
    """The base of both kinds of reply. ``outputs`` is filled before the first token."""

    exchange: ResponseWriter
    identity: CallIdentity
    style: ReplyStyle
    codec: TextCodec
    let_go: LetGo
    outputs: list[Output] = field(default_factory=list, init=False)
    num_prompt_tokens: int = field(default=0, init=False)
    ended: bool = field(default=False, init=False)
    find_life: FindLife = field(default_factory=lambda: _no_life, init=False)
    slices: Slices | None = field(default=None, init=False)
    """Where a long answer is written a little at a time; None: it is written at once."""
    account: Account | None = field(default=None, init=False)
    """Of the bytes that wait for its end; None: nobody counts them."""
    _num_ended: int = field(default=0, init=False)
    _is_explained: bool = field(default=False, init=False)
    _echoes: set[int] = field(default_factory=set, init=False)
    _logprobs: dict[int, LogprobsWriter] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.exchange.on_gone = self._gone
        self.keeps_tokens = self.style.logprobs or self.style.return_token_ids
        self.keeps_prompt = self.style.echo or self.style.prompt_logprobs
        self.streams = self.style.stream
        self.says_cut = True

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=0
            if self.style.prompt_alone
            else sum(o.text.num_tokens for o in self.outputs),
            reasoning_tokens=sum(o.text.num_reasoning_tokens for o in self.outputs),
            cached_tokens=sum(o.num_cached_tokens for o in self.outputs),
        )

    def _last_usage(self) -> Usage:
        """Return the usage of the whole call, with the times of its outputs if asked for."""
        usage = self._usage()
        if not self.style.include_timings:
            return usage
        lives = (self.find_life(output.request_id) for output in self.outputs)
        return usage._replace(timings=[timings(life) for life in lives if life is not None])

    def _logprobs_of(self, index: int) -> LogprobsWriter:
        writer = self._logprobs.get(index)
        if writer is None:
            style = self.style
            writer = LogprobsWriter(self.codec, chat=style.chat, as_ids=style.tokens_as_ids)
            self._logprobs[index] = writer
        return writer

    def _echo(self, output: Output, answer: str) -> Iterator[str]:
        """Yield a completion's prompt, if it is to be shown, and what follows, in short parts."""
        if self.style.echo:
            detokeniser, token_ids = self.codec.detokeniser(), output.prompt_token_ids
            for begin in range(0, len(token_ids), _ECHOED_AT_ONCE):
                yield "".join(map(detokeniser.push, token_ids[begin : begin + _ECHOED_AT_ONCE]))
            yield detokeniser.flush()
        if not self.style.prompt_alone:
            yield answer

    def _tokens(self, output: Output) -> tuple[Sequence[int], Sequence[TokenLogprobs | None]]:
        """Take the new tokens of an output; the prompt's come first where it is shown."""
        token_ids, logprobs = output.take_tokens()
        if self.style.prompt_alone:
            token_ids, logprobs = (), ()
        if self.style.echo and output.index not in self._echoes:
            self._echoes.add(output.index)
            of_prompt = output.prompt_logprobs or [UNSCORED] * (output.num_prompt_tokens - 1)
            token_ids = [*output.prompt_token_ids, *token_ids]
            logprobs = [UNSCORED, *of_prompt, *logprobs]
        return token_ids, logprobs

    def hold(self, logprobs: TokenLogprobs) -> None:
        """See ``Reply``."""
        if self.account is not None:
            scored = (logprobs, *logprobs.prompt)
            num_ranks = sum(len(each.top_token_ids) for each in scored)
            self.account.add(_TOKEN_BYTES * len(scored) + _RANK_BYTES * num_ranks)

    def _settle(self) -> None:
        if self.account is not None:
            self.account.close()

    def explain(self, decision: str) -> None:
        """Say in a header why the first output that begins runs where it does."""
        if decision and not self.exchange.started and not self._is_explained:
            self._is_explained = True
            self.exchange.add_header("x-headway-decision", _UNPRINTABLE.sub("?", decision))

    def _end_of(self, output: Output, end: str | None) -> str | None:
        return "length" if end and self.style.prompt_alone else end_of(output, end)

    def _end(self) -> bool:
        """Count an output that ended; return whether it was the last one."""
        self._num_ended += 1
        self.ended = self._num_ended == len(self.outputs)
        if self.ended:
            self._settle()
        return self.ended

    def fail(self, error: HeadwayError) -> None:
        """Answer with the error, unless the answer is whole; let the other outputs go.

        The last of it may be what fails: the client waits for an end.
        """
        if self.exchange.ended:
            return
        self.ended = True
        self._settle()
        error.param = self.style.param(error.param)
        try:
            self._refuse(error)
        finally:
            self.exchange.abort()  # does nothing after an answer
            self.let_go(self.outputs, error)

    def _refuse(self, error: HeadwayError) -> None:
        """Answer with the error, or end a stream with it."""
        if self.exchange.started:
            self.exchange.write(f"data: {error_body(error)}\n\n".encode(), last=True)
        else:
            respond_error(self.exchange, error)

    def _gone(self) -> None:
        self.ended = True
        self._settle()
        self.let_go(self.outputs, None)


class StreamReply(HttpReplyBase):
    """A reply as server-sent events; the status line waits for the first token or a refusal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chunks = ChunkWriter(self.identity, include_usage=self.style.include_usage)
        self._opened: set[int] = set()
        self._unwritten: deque[tuple[Iterator[str], bool]] = deque()
        """Events that wait for a long one, which is the first; True for the last one of all."""
        self._pause_for, self._paused_for = _SHORTEST_PAUSE, 0.0

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Write one event, followed by the call's last ones where it ends."""
        index, end = output.index, self._end_of(output, end)
        is_first = index not in self._opened
        if self.style.prompt_alone:
            piece = NOTHING
        extra = self._extra(output) if self.keeps_tokens else iter(('"logprobs":null',))
        if output.is_cut:
            extra = chain(extra, (',"stop_reason":"deadline"',))
        so_far = self._usage() if self.style.continuous_usage else None
        if self.style.echo and is_first:
            text = text_parts(self._echo(output, piece.answer))
            event = self._chunks.echo(index, text, end, extra, so_far)
        else:
            event = self._short(index, piece, end, extra, so_far)
        if is_first:
            self._opened.add(index)
            if not self.exchange.started:
                self.exchange.start(200, EVENTS)
            if self.style.chat:
                event = chain((self._chunks.opening(index),), event)
        last = end is not None and self._end()
        if last:
            usage = self._chunks.usage(self._last_usage()) if self.style.include_usage else ""
            event = chain(event, (f"{usage}data: [DONE]\n\n",))
        is_long = self.style.echo and is_first and output.num_prompt_tokens > _ECHOED_AT_ONCE
        self._write(event, last=last, is_long=is_long)

    def _short(
        self, index: int, piece: Piece, end: str | None, extra: Iterator[str], so_far: Usage | None
    ) -> Iterator[str]:
        """Yield a whole event, when its turn has come: scores count the characters before."""
        yield self._chunks.text(index, piece, end, "".join(extra), so_far)

    def _extra(self, output: Output) -> Iterator[str]:
        """Return JSON for the choice, of the tokens until now, in short parts."""
        token_ids, logprobs = self._tokens(output)
        extra: Iterator[str] = iter(('"logprobs":null',))
        if self.style.logprobs and token_ids:
            scores = self._logprobs_of(output.index).parts(token_ids, logprobs)
            extra = chain(('"logprobs":',), scores)
        if self.style.return_token_ids:
            extra = chain(extra, (f',"token_ids":{dumps(token_ids)}',))
        return extra

    # --- long events ------------------------------------------------------------------

    def _write(self, event: Iterator[str], *, last: bool, is_long: bool) -> None:
        """Write an event, or a long one a little at a time; those behind it wait."""
        if not self._unwritten and (self.slices is None or not is_long):
            self.exchange.write("".join(event).encode(), last=last)
            return
        self._unwritten.append((event, last))
        if len(self._unwritten) == 1:
            self._write_on()

    def _write_on(self) -> None:
        assert self.slices is not None, "long events are written at once without"
        self.slices.add(self._written())

    def _written(self) -> Iterator[None]:
        """Write what waits, as fast as its client reads."""
        try:
            while self._unwritten and not self.exchange.ended:
                if self.exchange.is_read_slowly:
                    self._pause()
                    return
                self._pause_for, self._paused_for = _SHORTEST_PAUSE, 0.0
                event, last = self._unwritten[0]
                written = _some(event)
                if not written:
                    self._unwritten.popleft()
                if written or last:
                    self.exchange.write(written.encode(), last=last and not written)
                yield
        except Exception:
            self._unwritten.clear()
            self.fail(HeadwayError(Code.INTERNAL, "the gateway failed; it is logged"))
            raise
        self._unwritten.clear()

    def _pause(self) -> None:
        """Look again soon; drop a client that does not read at all."""
        if self._paused_for >= _PATIENCE:
            self.exchange.abort()
            return
        self._paused_for += self._pause_for
        asyncio.get_running_loop().call_later(self._pause_for, self._write_on)
        self._pause_for = min(2 * self._pause_for, _LONGEST_PAUSE)

    def fail(self, error: HeadwayError) -> None:
        """See above. What waits goes first."""
        if not self._unwritten or self.exchange.ended:
            super().fail(error)
        elif not self.ended:
            self.ended = True
            error.param = self.style.param(error.param)
            self._unwritten.append((iter((f"data: {error_body(error)}\n\n",)), True))
            self.let_go(self.outputs, error)


class WholeReply(HttpReplyBase):
    """A reply as one JSON body, sent when every output has ended.

    One with many log probabilities takes long to write.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_writing = False
        self._pieces: dict[int, list[Piece]] = {}
        self._ends: dict[int, str] = {}

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Keep the piece; answer with the last one."""
        self._pieces.setdefault(output.index, []).append(piece)
        if end is not None:
            self._ends[output.index] = self._end_of(output, end) or end
            slices = self.slices
            if slices is not None and self.account is not None:
                self._is_writing = self.account.amount > _FEW_BYTES
            if not self._end():
                return
            if slices is not None and self._is_writing:
                slices.add(self._written())
            else:
                self.exchange.respond(200, JSON, "".join(self._body()).encode())

    def _settle(self) -> None:
        if not self._is_writing or self.exchange.ended:
            super()._settle()

    def _written(self) -> Iterator[None]:
        """Write the answer, unless its client leaves."""
        written: list[str] = []
        try:
            for part in self._body():
                written.append(part)
                yield
                if self.exchange.ended:
                    return
            self.exchange.respond(200, JSON, "".join(written).encode())
        except Exception:
            self.fail(HeadwayError(Code.INTERNAL, "the gateway failed; it is logged"))
            raise
        finally:
            self._is_writing = False
            self._settle()

    def _body(self) -> Iterator[str]:
        """Yield the answer in JSON, in short parts."""
        yield f'{dumps(self.identity.as_json(chunk=False))[:-1]},"choices":'
        for n, output in enumerate(self.outputs):
            yield "," if n else "["
            yield from self._choice(output)
        yield f'],"usage":{dumps(self._usage().as_json())}'
        if self.style.chat and self.style.prompt_logprobs:
            yield ',"prompt_logprobs":'
            yield from self._of_prompt(self.outputs[0])
        yield "}"

    def _choice(self, output: Output) -> Iterator[str]:
        choice: dict[str, Any]
        index = output.index
        pieces = self._pieces[index]
        piece = Piece(
            "".join(p.reasoning for p in pieces),
            "".join(p.answer for p in pieces),
            tuple(call for p in pieces for call in p.calls),
        )
        token_ids, scores = self._tokens(output)
        if self.style.chat:
            reasoning = self.codec.markers is not None or bool(piece.reasoning)
            choice = chat_choice(index, piece, self._ends[index], reasoning=reasoning)
        else:
            yield f'{{"index":{index},"text":'
            yield from text_parts(self._echo(output, piece.answer))
            choice = {"finish_reason": self._ends[index]}
        if self.style.return_token_ids:
            choice["token_ids"] = token_ids
        if output.is_cut:
            choice["stop_reason"] = "deadline"
        written = dumps(choice)[:-1]
        yield f'{written if self.style.chat else f",{written[1:]}"},"logprobs":'
        if self.style.logprobs:
            yield from self._logprobs_of(index).parts(token_ids, scores)
        else:
            yield "null"
        if self.style.prompt_logprobs and not self.style.chat:
            yield ',"prompt_logprobs":'
            yield from self._of_prompt(output)
        yield "}"

    def _of_prompt(self, output: Output) -> Iterator[str]:
        return prompt_parts(self.codec, output.prompt_token_ids, output.prompt_logprobs or ())


class ItemReply(HttpReplyBase, ABC):
    """A reply with one output: its reasoning, text and calls are items, one after another.

    In a stream every change of an item is an event.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events: list[str] = []
        self._has_begun = False

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Take more of the output; answer with the last of it."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        continued = list(takewhile(lambda call: not call.name, piece.calls))
        for call in continued:  # the rest of a call is before the text that came with it
            self._call(call)
        if piece.reasoning:
            self._grow("reasoning", piece.reasoning)
        if piece.answer:
            self._grow("message", piece.answer)
        for call in piece.calls[len(continued) :]:
            self._call(call)
        body = self._finish(output, end) if end is not None else {}
        if end is not None:
            self._end()
        if self.style.stream:
            if not self.exchange.started:
                self.exchange.start(200, EVENTS)
            data, self._events = "".join(self._events), []
            self.exchange.write(data.encode(), last=end is not None)
        elif end is not None:
            self.exchange.respond(200, JSON, dumps(body).encode())

    def _event(self, name: str, /, **said: Any) -> None:
        if self.style.stream:
            self._events.append(f"event: {name}\ndata: {dumps({'type': name, **said})}\n\n")

    @abstractmethod
    def _begin(self) -> None:
        """Take the beginning of the output."""

    @abstractmethod
    def _grow(self, kind: str, text: str) -> None:
        """Take more text of the answer (``message``) or of the ``reasoning`` before it."""

    @abstractmethod
    def _call(self, piece: CallPiece) -> None:
        """Take more of a call; one with a name begins it."""

    @abstractmethod
    def _finish(self, output: Output, end: str) -> Mapping[str, Any]:
        """Take the end, and return the whole answer."""


HttpReply = StreamReply | WholeReply | ItemReply


def _some(parts: Iterator[str]) -> str:
    """Return the next parts together; "" behind the last one."""
    taken, size = list[str](), 0
    for part in parts:
        taken.append(part)
        size += len(part)
        if size >= _WRITTEN_AT_ONCE:
            break
    return "".join(taken)


def _no_life(request_id: str) -> None:
    """Know of no life."""


def end_of(output: Output, end: str | None) -> str | None:
    """Return OpenAI's finish reason: an answer that calls tools ends for that."""
    return "tool_calls" if end == "stop" and output.text.num_calls else end


def respond_error(
    exchange: ResponseWriter, error: HeadwayError, status: int = 0, code: str | None = None
) -> None:
    """Respond with an error; ``status`` and ``code`` are more exact than the error's own."""
    if error.retry_after > 0:
        exchange.add_header("retry-after", str(math.ceil(error.retry_after)))
    exchange.respond(status or status_of(error.code), JSON, error_body(error, code).encode())
