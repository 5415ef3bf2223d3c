"""OpenAI's response bodies. Events, written for every token, are put together by hand."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, NamedTuple, TypeVar

from headway.errors import Code, HeadwayError
from headway.request import TokenLogprobs
from services.gateway.output_text import Piece
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import CallPiece

T = TypeVar("T")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PART, _SMALL_PART = 8, 256
"""Tokens whose log probabilities are written at once."""
_LEAST_LOGPROB = -9999.0  # JSON has no -Infinity; OpenAI writes this
UNSCORED = TokenLogprobs(0.0)
"""The entry of a prompt's first token, which has no log probability."""


class Usage(NamedTuple):
    """Token counts of one API call."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int = 0
    timings: Sequence[Mapping[str, Any]] = ()
    """The parts of the time of each output, where they were asked for."""

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        timings = {"timings": self.timings} if self.timings else {}
        return {
            **timings,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The fields that all chunks of one call repeat."""

    call_id: str
    model: str
    created: int
    fingerprint: str
    chat: bool

    def as_json(self, *, chunk: bool) -> dict[str, Any]:
        """Return the fields before ``choices``."""
        kind = "text_completion"
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.call_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChunkWriter:
    """A writer of the server-sent events of one call; ``tail`` ends each (usage, if asked for)."""

    def __init__(self, identity: CallIdentity, *, include_usage: bool) -> None:
        self._chat = identity.chat
        self._identity = identity
        head = dumps(identity.as_json(chunk=True))
        self._head = f'data: {head[:-1]},"choices":[{{"index":'
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"

    def opening(self, index: int) -> str:
        """Write a chat choice's first event, which bears the role."""
        delta = '{"role":"assistant","content":""}'
        return (
            f'{self._head}{index},"delta":{delta},"logprobs":null,"finish_reason":null}}]'
            f"{self._tail}"
        )

    def text(
        self, index: int, piece: Piece, end: str | None, extra: str, usage: Usage | None = None
    ) -> str:
        """Write one event; ``extra`` is JSON for the choice (``"logprobs":…``, token ids).

        ``usage``: what is to be said of it in this event.
        """
        if self._chat:
            body = f'"delta":{_delta(piece)}'
        else:
            body = f'"text":{encode_basestring(piece.answer)}'
        return f"{self._head}{index},{body},{extra}{self._end(end, usage)}"

    def echo(
        self,
        index: int,
        text: Iterator[str],
        end: str | None,
        extra: Iterator[str],
        usage: Usage | None = None,
    ) -> Iterator[str]:
        """Yield a completion's event in short parts; ``text`` is a string of JSON."""
        yield f'{self._head}{index},"text":'
        yield from text
        yield ","
        yield from extra
        yield self._end(end, usage)

    def _end(self, end: str | None, usage: Usage | None) -> str:
        reason = f'"{end}"' if end else "null"
        tail = self._tail
        if usage is not None:
            tail = f',"usage":{dumps(usage.as_json())}}}\n\n'
        return f',"finish_reason":{reason}}}]{tail}'

    def usage(self, usage: Usage) -> str:
        """Write the event with the usage, the last one before ``[DONE]``."""
        chunk = {**self._identity.as_json(chunk=True), "choices": [], "usage": usage.as_json()}
        return f"data: {dumps(chunk)}\n\n"


def _delta(piece: Piece) -> str:
    parts = []
    if piece.reasoning:
        text = encode_basestring(piece.reasoning)
        parts.append(f'"reasoning":{text},"reasoning_content":{text}')
    if piece.answer:
        parts.append(f'"content":{encode_basestring(piece.answer)}')
    if piece.calls:
        parts.append(f'"tool_calls":{dumps([_call_delta(call) for call in piece.calls])}')
    return f"{{{','.join(parts)}}}"


def _call_delta(call: CallPiece) -> dict[str, Any]:
    if not call.name:
        return {"index": call.number, "function": {"arguments": call.arguments}}
    head = {"index": call.number, "id": new_call_id(), "type": "function"}
    return {**head, "function": {"name": call.name, "arguments": call.arguments}}


def new_call_id() -> str:
    """Return an id for a call, by which its result names it."""
    return f"call_{secrets.token_hex(12)}"


def whole_calls(pieces: Sequence[CallPiece]) -> list[dict[str, Any]]:
    """Return the calls of a whole answer from their pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        made = {"id": new_call_id(), "type": "function", "function": {"name": "", "arguments": ""}}
        function = calls.setdefault(piece.number, made)["function"]
        function["name"] += piece.name
        function["arguments"] += piece.arguments
    return [*calls.values()]


def chat_choice(index: int, piece: Piece, end: str, *, reasoning: bool) -> dict[str, Any]:
    """Make a choice of a whole chat response but for its log probabilities.

    ``reasoning`` for reasoning models alone.
    """
    message: dict[str, Any] = {"role": "assistant", "content": piece.answer, "refusal": None}
    if piece.calls:
        message["content"] = piece.answer or None
        message["tool_calls"] = whole_calls(piece.calls)
    if reasoning:
        message["reasoning"] = message["reasoning_content"] = piece.reasoning or None
    return {"index": index, "message": message, "finish_reason": end}


# --- log probabilities ----------------------------------------------------------------


class LogprobsWriter:
    """Log probabilities of one output's tokens, reasoning included, in either API's shape."""

    def __init__(self, codec: TextCodec, *, chat: bool, as_ids: bool = False) -> None:
        self._codec = codec
        self._chat = chat
        self._as_ids = as_ids  # ``token_id:42`` in the text's place, as vLLM writes it
        self._offset = 0  # characters before the next token, for completions
        self._names: dict[int, str] = {}
        self._bytes: dict[int, Sequence[int]] = {}

    def parts(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> Iterator[str]:
        """Yield those of the next tokens as JSON, a few at a time."""

        def score(n: int) -> TokenLogprobs:
            return logprobs[n] or TokenLogprobs(_LEAST_LOGPROB)

        each = range(len(token_ids))
        if self._chat:
            yield '{"content":'
            yield from in_parts(each, lambda n: self._chat_entry(token_ids[n], score(n)))
            yield ',"refusal":null}'
            return
        yield '{"top_logprobs":'
        yield from in_parts(each, lambda n: self._tops(score(n)))
        yield ',"tokens":'
        yield from in_parts(token_ids, self.name, _SMALL_PART)
        yield ',"token_logprobs":'
        yield from in_parts(each, lambda n: _own(score(n)), _SMALL_PART)
        yield ',"text_offset":'
        yield from in_parts(token_ids, self._place, _SMALL_PART)
        yield "}"

    def _chat_entry(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        tops = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        return {
            **self._chat_token(token_id, logprobs.logprob),
            "top_logprobs": [self._chat_token(i, logprob) for i, logprob in tops],
        }

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._bytes.get(token_id)
        if raw is None:
            raw = self._bytes[token_id] = list(self._codec.token_text(token_id)[1])
        return {"token": self.name(token_id), "logprob": _finite(logprob), "bytes": raw}

    def name(self, token_id: int) -> str:
        """Return how a token is called."""
        name = self._names.get(token_id)
        if name is None:
            text = self._codec.token_text(token_id)[0]
            name = self._names[token_id] = f"token_id:{token_id}" if self._as_ids else text
        return name

    def _tops(self, entry: TokenLogprobs) -> dict[str, float] | None:
        if entry is UNSCORED:
            return None
        pairs = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        return {self.name(i): _finite(value) for i, value in pairs}

    def _place(self, token_id: int) -> int:
        """Return the characters before a completion's next token."""
        place = self._offset
        self._offset += len(self._codec.token_text(token_id)[0])
        return place


def prompt_parts(
    codec: TextCodec, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> Iterator[str]:
    """Yield vLLM's list for a prompt as JSON, a few tokens at a time: nothing for the first."""
    names = LogprobsWriter(codec, chat=False)
    entries: list[tuple[int, TokenLogprobs] | None] = [None]
    entries += zip(token_ids[1:], logprobs, strict=True)
    yield from in_parts(entries, lambda one: None if one is None else _prompt_entry(names, *one))


def _prompt_entry(names: LogprobsWriter, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
    """Return vLLM's entry for a token of a prompt: the best, and itself, by their ids."""
    ranks = {each: n for n, each in enumerate(logprobs.top_token_ids, 1)}
    pairs = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
    return {
        str(each): {
            "logprob": _finite(logprob),
            "rank": ranks.get(each),
            "decoded_token": names.name(each),
        }
        for each, logprob in {token_id: logprobs.logprob, **dict(pairs)}.items()
    }


def text_parts(texts: Iterable[str]) -> Iterator[str]:
    """Yield a text as one string of JSON; it comes in pieces, and a surrogate is none of two."""
    yield '"'
    for text in texts:
        yield encode_basestring(text)[1:-1]
    yield '"'


def in_parts(
    values: Sequence[T], as_json: Callable[[T], Any], num_in_part: int = _PART
) -> Iterator[str]:
    """Yield a list as JSON, a few of its values at a time."""
    yield "["
    for begin in range(0, len(values), num_in_part):
        written = dumps([as_json(value) for value in values[begin : begin + num_in_part]])[1:-1]
        yield f",{written}" if begin else written
    yield "]"


def _own(entry: TokenLogprobs) -> float | None:
    return None if entry is UNSCORED else _finite(entry.logprob)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB) if logprob == logprob else _LEAST_LOGPROB


# --- errors ---------------------------------------------------------------------------

_STATUS = {
    Code.INVALID_ARGUMENT: (400, "invalid_request_error"),
    Code.UNAUTHENTICATED: (401, "authentication_error"),
    Code.PERMISSION_DENIED: (403, "permission_error"),
    Code.NOT_FOUND: (404, "not_found_error"),
    Code.FAILED_PRECONDITION: (503, "server_error"),
    Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    Code.DEADLINE_EXCEEDED: (408, "timeout_error"),
    Code.CANCELLED: (499, "cancelled_error"),
    Code.UNAVAILABLE: (503, "server_error"),
    Code.INTERNAL: (500, "server_error"),
}


def status_of(code: Code) -> int:
    """Return the HTTP status of a refusal."""
    return _STATUS[code][0]


def error_body(error: HeadwayError, code: str | None = None) -> str:
    """Write OpenAI's error object; ``code`` is more exact than the error's own."""
    error_object = {
        "message": error.message,
        "type": _STATUS[error.code][1],
        "param": error.param,
        "code": code or error.code.value,
    }
    return dumps({"error": error_object})


def dumps(value: Any) -> str:
    """Write compact JSON, with text as it is."""
    return _ENCODER.encode(value)
