"""Text that a model is still writing, read for the calls in it.

A format is a generator over a source: it reads what is there, and yields where it needs more. What
it finds becomes events. Text that is no whole call is said as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of a format: yields for more text, and returns what it has read."""

_SPACES = " \n\r\t"
_MOST_SPACES = 1024
"""Spaces that wait for a marker behind them: each token would look at all of them again."""


class SaidText(NamedTuple):
    """Text of the answer."""

    text: str


class ThoughtText(NamedTuple):
    """Text of the reasoning."""

    text: str


class Called(NamedTuple):
    """A call that begins."""

    name: str


class Arguments(NamedTuple):
    """More of the newest call's arguments: JSON, as the model writes it."""

    text: str


class Frame(NamedTuple):
    """The text around a call's arguments, for a grammar."""

    begin: str
    """The mark of every call."""
    name: str
    """The text between the mark and the arguments, with ``{name}`` in it."""
    end: str


Event = SaidText | ThoughtText | Called | Arguments


class GrowingText:
    """A growing text. ``ended``: no more of it will come. ``events``: what was found in it."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.events: list[Event] = []
        self._taken: list[str] = []  # since the last ``mark``

    # --- taking text ------------------------------------------------------------------

    def take(self, length: int) -> str:
        """Return the next characters, which are there, and go on after them."""
        taken, self.text = self.text[:length], self.text[length:]
        self._taken.append(taken)
        return taken

    def mark(self, before: str = "") -> None:
        """Remember this place, and the text ``before`` it, for ``give_up``."""
        self._taken = [before]

    def give_up(self) -> None:
        """Say all text since the mark: it was no call."""
        self.say("".join(self._taken))
        self._taken = []

    def say(self, text: str) -> None:
        """Show text of the answer."""
        if text:
            self.events.append(SaidText(text))

    def peek(self) -> Reading[str]:
        """Return the next character, "" at the end."""
        while not self.text and not self.ended:
            yield
        return self.text[:1]

    def skip_spaces(self) -> Reading[str]:
        """Go on to the next character that is no space; return it, "" at the end."""
        while (char := (yield from self.peek())) and char in _SPACES:
            self.take(1)
        return char

    def until(self, *markers: str, emit: Callable[[str], None] | None = None) -> Reading[str]:
        """Go on after the first of the markers; return it, "" at the end.

        ``emit`` gets the text before it, without the last spaces right before the marker.
        """
        passed: list[str] = []  # text before a marker that may not come
        pass_on = emit or passed.append
        while True:
            places = [(place, m) for m in markers if (place := self.text.find(m)) >= 0]
            if places:
                place, marker = min(places)
                before = self.take(place)
                self.take(len(marker))
                pass_on(before.rstrip(_SPACES))
                return marker
            keep = 0 if self.ended else max(_overlap(self.text, marker) for marker in markers)
            certain = len(self.text) - keep
            if not self.ended:
                certain = max(certain - _MOST_SPACES, len(self.text[:certain].rstrip(_SPACES)))
            pass_on(self.take(certain))
            if self.ended:
                self.text = "".join(passed)
                return ""
            yield

    def collect(self, *markers: str) -> Reading[tuple[str, str]]:
        """Return the text before the first of the markers, and the marker ("" at the end)."""
        parts: list[str] = []
        marker = yield from self.until(*markers, emit=parts.append)
        return "".join(parts), marker

    def say_rest(self) -> Reading[None]:
        """Say all text that is left."""
        while (yield from self.peek()):
            self.say(self.take(len(self.text)))

    # --- JSON -------------------------------------------------------------------------

    def value(self, emit: Callable[[str], None]) -> Reading[bool]:
        """Pass on the text of one JSON value; return whether it is whole."""
        depth, in_string, escaped = 0, False, False
        while True:
            end = -1
            for place, char in enumerate(self.text):
                if in_string:
                    in_string = escaped or char != '"'
                    escaped = char == "\\" and not escaped
                    if not in_string and not depth:
                        end = place + 1
                elif char == '"':
                    in_string = True
                elif char in "{[":
                    depth += 1
                elif char in "}]" and depth:
                    depth -= 1
                    end = -1 if depth else place + 1
                elif not depth and char in "}], \n\r\t":
                    end = place
                if end >= 0:
                    emit(self.take(end))
                    return True
            if self.text:
                emit(self.take(len(self.text)))
            if self.ended:
                return False
            yield

    def whole_value(self) -> Reading[object]:
        """Return one JSON value, None where it is none; half a surrogate pair is a "?"."""
        parts: list[str] = []
        yield from self.value(parts.append)
        try:
            value = json.loads("".join(parts))
        except (ValueError, RecursionError):
            return None
        return value.encode(errors="replace").decode() if isinstance(value, str) else value

    def argue(self) -> Reading[None]:
        """Pass on one JSON value as the newest call's arguments; a string holds their JSON."""
        if (yield from self.skip_spaces()) == '"':
            held = yield from self.whole_value()
            self.events.append(Arguments(str(held or "{}")))
        else:
            yield from self.value(lambda text: self.events.append(Arguments(text)))

    def call_object(self) -> Reading[bool]:
        """Read ``{"name": …, "arguments": {…}}``; return whether it began a call."""
        name, early, argued = "", "", False
        self.take(1)
        while True:
            char = yield from self.skip_spaces()
            if char == ",":
                self.take(1)
                continue
            if char != '"':
                break
            key = yield from self.whole_value()
            if (yield from self.skip_spaces()) != ":":
                break
            self.take(1)
            yield from self.skip_spaces()
            if key == "name":
                name = str((yield from self.whole_value()) or "")
                if name:
                    self.events += [Called(name), *([Arguments(early)] if early else ())]
            elif key not in ("arguments", "parameters"):
                yield from self.whole_value()
            elif name:
                yield from self.argue()
                argued = True
            else:
                parts: list[str] = []
                yield from self.value(parts.append)
                early, argued = "".join(parts), True
        if char == "}":
            self.take(1)
            if name and not argued:
                self.events.append(Arguments("{}"))
        return bool(name)


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``marker``."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
