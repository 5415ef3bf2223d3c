"""What a client reads of one output: reasoning apart from the answer, cut at a stop string.

Stop strings end the answer: where reasoning is split off they are not looked for in it, so that
a stop like a blank line does not end the output before the answer has begun. Where nothing is
split off (completions, models without markers) they are looked for in all text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from services.gateway.detokenise import Detokeniser


class Piece(NamedTuple):
    """Text that may be shown now."""

    reasoning: str
    answer: str


_PROMPT_END = 8  # tokens
NOTHING = Piece("", "")


class ReasoningMarkers(NamedTuple):
    """Ids of the tokens around reasoning, ``<think>`` and ``</think>``.

    What counts of a prompt is its very end, a chat template's doing, behind the last special
    token: markers in a client's own text are none.
    """

    start_id: int
    end_id: int

    def is_open(self, prompt_token_ids: Sequence[int], special_ids: Container[int] = ()) -> bool:
        """Whether the prompt has begun the reasoning."""
        return self._last(prompt_token_ids, special_ids) == self.start_id

    def is_closed(self, prompt_token_ids: Sequence[int], special_ids: Container[int] = ()) -> bool:
        """Whether the prompt has ended the reasoning: thinking is switched off."""
        return self._last(prompt_token_ids, special_ids) == self.end_id

    def _last(self, prompt_token_ids: Sequence[int], special_ids: Container[int]) -> int | None:
        for token_id in reversed(prompt_token_ids[-_PROMPT_END:]):
            if token_id in self:
                return token_id
            if token_id in special_ids:
                return None
        return None


class StopScanner:
    """Finds the first stop string in a growing text; holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certainly before any stop string."""
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
        """What was held back: the text has ended without the rest of a stop string."""
        held, self._held = self._held, ""
        return held


class OutputText:
    """Tokens in, pieces out. ``stopped`` says that a stop string was found: ask no more of it."""

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
        markers: ReasoningMarkers | None = None,
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._detokeniser = detokeniser
        self._scanner = StopScanner(stops) if stops else None
        self._min_tokens = min_tokens
        self._markers = markers
        self._held_newlines = ""
        self._at_start = in_reasoning  # of a section whose leading newlines are not shown
        self.reasoning = in_reasoning
        self.num_tokens = 0
        self.num_reasoning_tokens = 0  # the markers count as reasoning

    @property
    def num_answer_tokens(self) -> int:
        """Those that are no reasoning."""
        return self.num_tokens - self.num_reasoning_tokens

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._scanner is not None and self._scanner.found

    def push(self, token_id: int) -> Piece:
        """The text that may be shown after one more token."""
        self.num_tokens += 1
        if self._markers is None:
            text = self._detokeniser.push(token_id)
            return Piece("", self._answer(text)) if text else NOTHING
        if token_id in self._markers:
            return self._turn(token_id == self._markers.start_id)
        if self.reasoning:
            self.num_reasoning_tokens += 1
        text = self._detokeniser.push(token_id)
        return self._section(self._trim(text)) if text else NOTHING

    def finish(self) -> Piece:
        """The rest, once the last token is in."""
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
        """A marker: the section ends, without the newlines before it."""
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
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
