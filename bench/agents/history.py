"""A session's messages: what it has sent and heard so far, and what it asks next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bench.agents.texts import Measure, Texts, num_shared
from headway.workload.sessions import SessionTurn

LEAST_TOKENS = 8
"""Of a user's text, however long the answers before it became."""
Message = dict[str, str]


class History:
    """The history of one session, which every prompt repeats as a whole.

    ``own`` names its texts. ``system``: tokens of its first prompt that are the system's message.
    """

    def __init__(self, texts: Texts, measure: Measure, own: str, system: int) -> None:
        self._texts = texts
        self._measure = measure
        self._own = own
        self._system = system
        self._ends: list[int] = []  # tokens of the prompt up to the end of each message
        self._ids: Sequence[int] = ()
        self.messages: list[Message] = []

    @property
    def num_tokens(self) -> int:
        """Tokens of all messages, as far as the endpoint's counts tell."""
        return self._ends[-1] if self._ends else 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt that was answered last; 0 before the first answer."""
        return self._ends[-2] if len(self._ends) > 1 else 0

    def length(self, turn: SessionTurn) -> int:
        """Return the tokens of the prompt that a turn makes, about."""
        if not self.messages:
            return turn.input_length
        return max(turn.input_length, self.num_tokens + LEAST_TOKENS + self._measure.pair)

    def ask(self, turn: SessionTurn) -> list[Message]:
        """Append the user's text that brings the prompt to the turn's length; return all messages.

        The text is at least ``LEAST_TOKENS`` long.
        """
        self._ids = turn.hash_ids
        system = min(self._system, turn.input_length - LEAST_TOKENS)
        if not self.messages and system > 0:
            self._append("system", 0, system)
        around = self._measure.pair if self.messages else self._measure.first
        start = self.num_tokens
        self._append("user", start, max(start + LEAST_TOKENS, turn.input_length - around))
        return self.messages

    def answered(self, text: str, num_prompt_tokens: int | None, num_tokens: int) -> None:
        """Append the model's answer; the endpoint's count of the prompt corrects the length."""
        if num_prompt_tokens is not None:
            self._ends[-1] = num_prompt_tokens
        visible = round(len(text) / self._measure.chars_per_token)
        self.messages.append({"role": "assistant", "content": text})
        self._ends.append(self.num_tokens + min(visible, num_tokens))

    def branch(self, turn: SessionTurn, own: str, system: int, block: int) -> History:
        """Return the conversation of a child whose first turn is ``turn``.

        It begins with the messages whose greater part lies within the blocks (of ``block`` tokens)
        that both prompts begin with; a question takes its answer along.
        """
        child = History(self._texts, self._measure, own, system)
        shared = num_shared(self._ids, turn.hash_ids) * block
        middles = [(start + end) / 2 for start, end in pairwise([0, *self._ends])]
        num_kept = sum(middle < shared for middle in middles)
        last = self.messages[num_kept - 1]["role"] if num_kept else ""
        num_kept += {"user": 1, "system": -1}.get(last, 0)
        child.messages = self.messages[:num_kept]
        child._ends = self._ends[:num_kept]
        return child

    def _append(self, role: str, start: int, end: int) -> None:
        text = self._texts.between(self._ids, start, end, self._own)
        self.messages.append({"role": role, "content": text})
        self._ends.append(end)
