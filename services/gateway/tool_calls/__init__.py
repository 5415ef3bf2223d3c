"""Tool calls in what a model writes: one file for each format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from services.gateway.tool_calls import deepseek, forced, harmony, hermes, llama3, mistral
from services.gateway.tool_calls.source import Event, Frame, GrowingText, Reading

Read = Callable[[GrowingText], Reading[None]]


class Format(NamedTuple):
    """A format of calls."""

    read: Read
    markers: tuple[str, ...] = ()
    """Tokens of the format; special ones are text for its reader."""
    signs: tuple[str, ...] = ()
    """Words by which a chat template shows that its model writes this format."""
    frame: Frame | None = None
    """The text around arguments, where a grammar may keep them to a schema."""
    has_channels: bool = False
    """True if a chat's answers are written in it without calls, too, and its reasoning is."""


FORMATS: Mapping[str, Format] = {
    "hermes": Format(hermes.read, hermes.MARKERS, ("<tool_call>",), hermes.FRAME),
    "llama3_json": Format(llama3.read, llama3.MARKERS, (llama3.TAG, '"parameters"')),
    "mistral": Format(mistral.read, mistral.MARKERS, (mistral.BEGIN,)),
    "deepseek_v3": Format(deepseek.read, deepseek.MARKERS, (deepseek.BEGIN,)),
    "openai": Format(harmony.read, harmony.MARKERS, (harmony.CHANNEL,), has_channels=True),
}
"""Formats by vLLM's names for them."""

REQUIRED = Format(forced.read_list)


def named(name: str) -> Format:
    """Return the format of an answer that is the arguments of one call."""
    return Format(partial(forced.read_arguments, name=name))


def format_of(template: str) -> Format:
    """Return the format that a chat template shows; Hermes' where it shows none."""
    formats = (each for each in FORMATS.values() if any(sign in template for sign in each.signs))
    return next(formats, FORMATS["hermes"])


class CallPiece(NamedTuple):
    """More of one call; ``name`` with its first piece alone."""

    number: int
    name: str
    arguments: str


class ToolReader:
    """A reader of one answer's text: what may be shown as it comes, calls apart."""

    def __init__(self, form: Format) -> None:
        self.has_channels = form.has_channels
        self._source = GrowingText()
        self._reading = form.read(self._source)

    def push(self, text: str) -> Sequence[Event]:
        """Take more text; return what is certain now."""
        self._source.text += text
        return self._go_on()

    def finish(self) -> Sequence[Event]:
        """Return the rest, once no text will follow."""
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> Sequence[Event]:
        next(self._reading, None)
        source = self._source
        events, source.events = source.events, []
        return events
