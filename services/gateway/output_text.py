"""The text that a client reads: reasoning apart from the answer, cut at a stop string.

Stop strings end the answer: where reasoning is split off they are not looked for in it, so that
a stop like a blank line does not end the output before the answer has begun. Where nothing is
split off (completions, models without markers) they are looked for in all text. In an answer with
channels they are looked for in what is said to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.reasoning import Markers
from services.gateway.detokenise import Detokeniser, ShownTokens
from services.gateway.tool_calls import CallPiece, ToolReader
from services.gateway.tool_calls.source import Arguments, Called, Event, SaidText, ThoughtText


class Piece(NamedTuple):
    """Text that may be shown now, and more of the calls in it."""

    reasoning: str
    answer: str
    calls: tuple[CallPiece, ...] = ()

    def then(self, more: Piece) -> Piece:
        """Return this piece with another one after it."""
        return Piece(
            self.reasoning + more.reasoning, self.answer + more.answer, self.calls + more.calls
        )


NOTHING = Piece("", "")
_MOST_NEWLINES = 1024
"""Newlines that wait for what follows: each token would look at all of them again."""


class StopScanner:
    """A search for the first stop string in a growing text; it holds back what may begin one."""

    def __init__(self, stops: Sequence[str], *, keeps: bool = False) -> None:
        """``keeps``: whether the stop string that was found is shown."""
        self._stops = stops
        self._keeps = keeps
        self._held = ""
        self._overlaps = [0] * len(stops)  # what the end of the text has of each stop's beginning
        self.stop = ""
        """The stop string that was found."""

    def push(self, text: str) -> str:
        """Take more text; return what certainly lies before any stop string."""
        if self.stop:
            return ""
        num_new = len(text)
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, stop = min(places)
            self.stop, self._held = stop, ""
            return text[: place + len(stop) * self._keeps]
        self._overlaps = [  # no longer than before, and what is new
            _overlap(text, stop, had + num_new)
            for stop, had in zip(self._stops, self._overlaps, strict=True)
        ]
        keep = max(self._overlaps, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text held back, once no rest of a stop string can follow."""
        held, self._held = self._held, ""
        return held


class OutputText:
    """The text of one output: tokens in, pieces out, until a stop string is found."""

    __slots__ = (
        "_answers",
        "_at_start",
        "_detokeniser",
        "_held_newlines",
        "_markers",
        "_min_tokens",
        "_scanner",
        "_several_calls",
        "_tools",
        "num_calls",
        "num_reasoning_tokens",
        "num_tokens",
        "reasoning",
    )

    def __init__(
        self,
        detokeniser: Detokeniser,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        markers: Markers | None = None,
        *,
        in_reasoning: bool = False,
        tools: ToolReader | None = None,
        several_calls: bool = True,
        keeps_stop: bool = False,
    ) -> None:
        """``tools``: what reads calls from the answer, one or several."""
        self._detokeniser = detokeniser
        self._scanner = StopScanner(stops, keeps=keeps_stop) if stops else None
        self._min_tokens = min_tokens
        # The tokenizer has each marker as one token: the start's id, the end's id.
        self._markers = None if markers is None else (*markers.start, *markers.end)
        self._held_newlines = ""
        self._at_start = in_reasoning  # of a section whose leading newlines are not shown
        self.reasoning = in_reasoning
        self.num_tokens = 0
        self._tools = tools
        self._answers = False  # once the answer has begun, where reasoning has a channel
        self._several_calls = several_calls
        self.num_calls = 0
        self.num_reasoning_tokens = 0  # the markers count as reasoning

    @property
    def num_answer_tokens(self) -> int:
        """Number of tokens that are not reasoning."""
        return self.num_tokens - self.num_reasoning_tokens

    @property
    def stopped(self) -> bool:
        """True once a stop string was found: no more tokens are needed."""
        return bool(self.stop)

    @property
    def stop(self) -> str:
        """The stop string that was found, "" before."""
        return "" if self._scanner is None else self._scanner.stop

    def push(self, token_id: int, *, ends: bool = False) -> Piece:
        """Take one more token; return the text that may be shown now.

        A special token that ``ends`` the output is not shown.
        """
        self.num_tokens += 1
        if (
            ends
            and isinstance(self._detokeniser, ShownTokens)
            and self._detokeniser.shows(token_id)
        ):
            return NOTHING
        if self._markers is None:
            text = self._detokeniser.push(token_id)
            return self._counted(self._answer(text) if text else NOTHING)
        if token_id in self._markers:
            return self._turn(token_id == self._markers[0])
        if self.reasoning:
            self.num_reasoning_tokens += 1
        text = self._detokeniser.push(token_id)
        return self._section(self._trim(text)) if text else NOTHING

    def finish(self) -> Piece:
        """Return the rest, once the last token is in."""
        piece = NOTHING
        if not self.stopped:
            text = self._detokeniser.flush()
            if self._markers is not None:
                text = self._trim(text) + self._held_newlines
            piece = self._section(text)
            if not self._has_channels:
                piece = piece.then(self._called(self._held_back()))
        if self._tools is None or (self._has_channels and self.stopped):
            return piece
        piece = piece.then(self._piece(self._tools.finish()))
        return piece.then(Piece("", self._held_back())) if self._has_channels else piece

    def _counted(self, piece: Piece) -> Piece:
        """Count the token of a piece as reasoning where channels say so, heads included."""
        if self._has_channels:
            self._answers = self._answers or bool(piece.answer or piece.calls)
            self.num_reasoning_tokens += bool(piece.reasoning) or not self._answers
        return piece

    def _turn(self, to_reasoning: bool) -> Piece:
        """End the section at a marker, without the newlines before it."""
        self.num_reasoning_tokens += 1
        piece = self._section(self._trim(self._detokeniser.flush()))
        self._held_newlines = ""
        self._at_start = True
        self.reasoning = to_reasoning
        return piece

    def _section(self, text: str) -> Piece:
        if self.reasoning:
            return Piece(text, "")
        return self._answer(text)

    @property
    def _has_channels(self) -> bool:
        return self._tools is not None and self._tools.has_channels

    def _answer(self, text: str) -> Piece:
        return self._called(text if self._has_channels else self._searched(text))

    def _searched(self, text: str) -> str:
        """Return the text that certainly lies before any stop string."""
        if self._scanner is None or self.num_tokens < self._min_tokens:
            return text
        return self._scanner.push(text)

    def _held_back(self) -> str:
        """Return the text that might have begun a stop string, once no more of it can follow."""
        return "" if self._scanner is None or self.stopped else self._scanner.flush()

    def _called(self, text: str) -> Piece:
        """Return text of the answer, with the calls apart if they are read."""
        return Piece("", text) if self._tools is None else self._piece(self._tools.push(text))

    def _piece(self, events: Sequence[Event]) -> Piece:
        thought, said = "", ""
        calls: list[CallPiece] = []
        for event in events:
            match event:
                case ThoughtText(text):
                    thought += text
                case SaidText(text):
                    said += text
                case Called(name):
                    self.num_calls += 1
                    calls.append(CallPiece(self.num_calls - 1, name, ""))
                case Arguments(text):
                    calls.append(CallPiece(self.num_calls - 1, "", text))
        said = self._searched(said) if self._has_channels else said
        wanted = (call for call in calls if call.number == 0 or self._several_calls)
        return Piece(thought, said, tuple(wanted))

    def _trim(self, text: str) -> str:
        """Drop a section's leading newlines; hold back its last ones until text follows."""
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = not text
        text = self._held_newlines + text
        end = max(len(text.rstrip("\n")), len(text) - _MOST_NEWLINES)
        self._held_newlines = text[end:]
        return text[:end]


def _overlap(text: str, stop: str, most: int) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``, up to ``most``."""
    for length in range(min(len(text), len(stop) - 1, most), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
