"""Finding the end of reasoning from the tokens alone (PASCAL's phases)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

EFFORTS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 128,
    "low": 1024,
    "medium": 2048,
    "high": None,
    "xhigh": None,
}
"""Tokens of reasoning by ``reasoning_effort``, as LiteLLM translates it; None: any number."""

START, END = "<think>", "</think>"
LEAD = 4
"""Output tokens that may precede the opening marker: line breaks, a role's name."""
_PROMPT_END = 8  # tokens; a chat template opens the reasoning there


def marker_ids(added: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the markers' ids among a tokenizer's added tokens (text to id); None without both."""
    if START not in added or END not in added:
        return None
    return added[START], added[END]


@dataclass(frozen=True, slots=True)
class Markers:
    """Token ids that ``start`` and ``end`` a model's reasoning.

    Without an end nothing reasons. A request that reasons begins its answer after the end. If the
    start is known and neither the prompt nor the first output tokens contain it, the model skips
    thinking: all of its output is the answer.
    """

    end: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def decided_at(self) -> int:
        """Output tokens within which the start must appear; 0 if it is not known."""
        return LEAD + len(self.start) if self.start else 0

    def is_open(self, prompt: Sequence[int], special_ids: Container[int] = ()) -> bool:
        """Return whether the prompt ends inside reasoning.

        Only tokens after the last of ``special_ids`` count, because a chat template writes them.
        Markers before it are a client's own text.
        """
        return bool(self.start) and self._last_marker(prompt, special_ids) == self.start

    def is_closed(self, prompt: Sequence[int], special_ids: Container[int] = ()) -> bool:
        """Return whether the prompt ends with reasoning closed: thinking is off."""
        return bool(self.end) and self._last_marker(prompt, special_ids) == self.end

    def _last_marker(
        self, prompt: Sequence[int], special_ids: Container[int]
    ) -> tuple[int, ...] | None:
        tail = tuple(prompt[-_PROMPT_END - max(len(self.start), len(self.end)) :])
        for end in range(len(tail), 0, -1):
            for marker in (self.start, self.end):
                if marker and tail[max(0, end - len(marker)) : end] == marker:
                    return marker
            if tail[end - 1] in special_ids:
                return None
        return None

    def answer_start(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        """Return the number of output tokens before the answer; None while the request reasons."""
        if not self.end:
            return 0
        if self.never_thinks(prompt, output):
            return 0
        length = len(self.end)
        ends = range(length, len(output) + 1)
        return next((end for end in ends if tuple(output[end - length : end]) == self.end), None)

    def ends_with_end(self, output: Sequence[int]) -> bool:
        """Return whether the newest token completes the end."""
        return bool(self.end) and tuple(output[-len(self.end) :]) == self.end

    def forced(self, output: Sequence[int], budget: int) -> int | None:
        """Return the token that must come next to end the reasoning; None where none must.

        ``budget``: most tokens of reasoning, markers apart. Without a start the prompt has begun
        it. The answer follows from the tokens alone, so another worker gives the same.
        """
        start = 0
        if self.start:
            start = _last(output[: self.decided_at], self.start) + len(self.start)
            if start < len(self.start):
                return None
        place = len(output) - start - budget
        if not 0 <= place < len(self.end):
            return None
        reasoned = output[start : start + budget]
        return None if _last(reasoned, self.end) >= 0 else self.end[place]

    def never_thinks(self, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Return whether the output began with something other than reasoning."""
        decided_at = self.decided_at
        if not decided_at or len(output) < decided_at:
            return False
        head = output[:decided_at]
        return (
            _last(head, self.start) < 0 and _last(head, self.end) < 0 and not self.is_open(prompt)
        )


def _last(tokens: Sequence[int], marker: tuple[int, ...]) -> int:
    """Return the position of a marker's last occurrence, -1 if there is none."""
    length = len(marker)
    if not length:
        return -1
    starts = range(len(tokens) - length, -1, -1)
    return next((at for at in starts if tuple(tokens[at : at + length]) == marker), -1)
