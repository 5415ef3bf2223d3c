"""Server-sent events of OpenAI's streams, read from bytes as they come."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_EVENT_BYTES = 4 * 2**20
DONE = b"[DONE]"
_REASONING_START, _REASONING_END = "<think>", "</think>"


class BadStreamError(Exception):
    """Data that is no stream of OpenAI's; the message says what it is instead."""


class EventSplitter:
    """Cuts bytes into the data of whole events; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that ``data`` completes."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise BadStreamError(f"an event of over {MOST_EVENT_BYTES} bytes")
        return [payload for event in events if (payload := _event_data(event))]


def _event_data(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly always
        return event[6:]
    lines = event.split(b"\n")
    parts = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(parts)


class Delta(NamedTuple):
    """An event's additions: text of the answer and of the reasoning, an end, token counts."""

    answer: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def read_delta(data: bytes) -> Delta:
    """Read one event, for chat and plain completions; BadStreamError where it has none.

    Reasoning is called ``reasoning_content`` by most servers and ``reasoning`` by newer vLLM.
    """
    try:
        return _delta(json.loads(data))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadStreamError(f"an event that is none of OpenAI's: {data[:80]!r}") from None


def _delta(event: Any) -> Delta:
    if event.get("error"):
        raise BadStreamError(f"error event: {_error_text(event['error'])}")
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    counts = (
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        details.get("cached_tokens"),
    )
    choices = event.get("choices")
    if not choices:
        return Delta("", "", None, *counts)
    choice = choices[0]
    delta = choice.get("delta")
    if delta is None:
        return Delta(choice.get("text") or "", "", choice.get("finish_reason"), *counts)
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return Delta(delta.get("content") or "", reasoning, choice.get("finish_reason"), *counts)


def _error_text(error: Any) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:200]


@dataclass(slots=True)
class Stream:
    """A response as it comes: instants of its tokens, its text, end and counts."""

    token_times: list[float] = field(default_factory=list)
    pieces: list[tuple[float, str]] = field(default_factory=list)  # instant and text, no reasoning
    finish_reason: str | None = None
    finished_at: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def take(self, data: bytes, now: float) -> None:
        """Take one event's data, which came at ``now``."""
        if data == DONE:
            return
        delta = read_delta(data)
        if delta.answer or delta.reasoning:
            self._add_tokens(delta.completion_tokens, now)
        if delta.answer:
            self.pieces.append((now, delta.answer))
        if delta.finish_reason:
            self.finish_reason, self.finished_at = delta.finish_reason, now
        if delta.completion_tokens is not None:
            self.prompt_tokens = delta.prompt_tokens
            self.completion_tokens = delta.completion_tokens
            self.cached_tokens = delta.cached_tokens

    def _add_tokens(self, num_so_far: int | None, now: float) -> None:
        """Add an event's tokens: one, or those that usage told in every event counts more.

        Tokens without text (half a character, a marker) have no event of their own. They share
        the time since the event before.
        """
        times = self.token_times
        num_new = max(1, (num_so_far or 0) - len(times))
        before = times[-1] if times else now
        times.extend(before + (now - before) * n / num_new for n in range(1, num_new))
        times.append(now)

    @property
    def answer(self) -> str:
        """The text without reasoning, also where the server left that in it."""
        text = "".join(text for _, text in self.pieces)
        return text[_answer_start(text) :].strip()

    @property
    def first_answer_at(self) -> float | None:
        """Return when the first of the answer's visible characters came."""
        start = _answer_start("".join(text for _, text in self.pieces))
        end = 0
        for at, text in self.pieces:
            end += len(text)
            if end > start and text[max(0, len(text) - (end - start)) :].strip():
                return at
        return None


def _answer_start(text: str) -> int:
    place = text.find(_REASONING_END)
    if place >= 0:
        return place + len(_REASONING_END)
    return len(text) if text.lstrip().startswith(_REASONING_START) else 0
