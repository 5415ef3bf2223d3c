"""The text that a client reads: reasoning apart from the answer, cut at a stop string.

Stop strings end the answer: where reasoning is split off they are not looked for in it, so that
a stop like a blank line does not end the output before the answer has begun. Where nothing is
split off (completions, models without markers) they are looked for in all text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.reasoning import Markers
from services.gateway.detokenise import Detokeniser


class Piece(NamedTuple):
    """Text that may be shown now."""

    reasoning: str
    answer: str


NOTHING = Piece("", "")


class StopScanner:
    """A search for the first stop string in a growing text; it holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Take more text; return what certainly lies before any stop string."""
        if self.found:
            return ""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text held back, once no rest of a stop string can follow."""
        held, self._held = self._held, ""
        return held


class OutputText:
    """The text of one output: tokens in, pieces out, until a stop string is found."""

    __slots__ = (
        "_at_start",
        "_detokeniser",
        "_held_newlines",
        "_markers",
        "_min_tokens",
        "_scanner",
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
    ) -> None:
        self._detokeniser = detokeniser
        self._scanner = StopScanner(stops) if stops else None
        self._min_tokens = min_tokens
        # The tokenizer has each marker as one token: the start's id, the end's id.
        self._markers = None if markers is None else (*markers.start, *markers.end)
        self._held_newlines = ""
        self._at_start = in_reasoning  # of a section whose leading newlines are not shown
        self.reasoning = in_reasoning
        self.num_tokens = 0
        self.num_reasoning_tokens = 0  # the markers count as reasoning

    @property
    def num_answer_tokens(self) -> int:
        """Number of tokens that are not reasoning."""
        return self.num_tokens - self.num_reasoning_tokens

    @property
    def stopped(self) -> bool:
        """True once a stop string was found: no more tokens are needed."""
        return self._scanner is not None and self._scanner.found

    def push(self, token_id: int) -> Piece:
        """Take one more token; return the text that may be shown now."""
        self.num_tokens += 1
        if self._markers is None:
            text = self._detokeniser.push(token_id)
            return Piece("", self._answer(text)) if text else NOTHING
        if token_id in self._markers:
            return self._turn(token_id == self._markers[0])
        if self.reasoning:
            self.num_reasoning_tokens += 1
        text = self._detokeniser.push(token_id)
        return self._section(self._trim(text)) if text else NOTHING

    def finish(self) -> Piece:
        """Return the rest, once the last token is in."""
        if self.stopped:
            return NOTHING
        text = self._detokeniser.flush()
        if self._markers is not None:
            text = self._trim(text) + self._held_newlines
        piece = self._section(text)
        if self._scanner is None or self.stopped:
            return piece
        return Piece(piece.reasoning, piece.answer + self._scanner.flush())

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
        return Piece("", self._answer(text))

    def _answer(self, text: str) -> str:
        if self._scanner is None or self.num_tokens < self._min_tokens:
            return text
        return self._scanner.push(text)

    def _trim(self, text: str) -> str:
        """Drop a section's leading newlines; hold back its last ones until text follows."""
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = not text
        text = self._held_newlines + text
        shown = text.rstrip("\n")
        self._held_newlines = text[len(shown) :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
