"""Clients as readers: where the answer begins, and how long their tokens last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headway.core.reasoning import Markers
from headway.core.worker.sequence import Reader, Sequence
from headway.core.worker.settings import WorkerSettings
from headway.forward_pass import Sampled
from headway.request import Request


class ReadTokens(NamedTuple):
    """Tokens that a pass drew for a request, ``step`` seconds apart, the last at ``last_at``."""

    num_tokens: int
    step: float
    last_at: float


class Readers:
    """The keeper of every request's ``Reader``."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._markers = Markers(settings.end_of_reasoning, settings.start_of_reasoning)
        self._pace = settings.reader_pace

    def of(self, request: Request, output: list[int]) -> Reader:
        """Return the reader of an arriving request."""
        if not request.reasons:
            return Reader(0)
        return Reader(self._markers.answer_start(request.prompt_token_ids, output))

    def extended(self, sequence: Sequence) -> None:
        """Look for the answer in tokens that another worker has drawn."""
        if sequence.reader.answer_start is None:
            sequence.reader.answer_start = self.of(sequence.request, sequence.output).answer_start

    def drew(self, sequence: Sequence, sampled: Sampled, *, now: float, step: float) -> bool:
        """Note a pass's tokens, ``step`` seconds apart; return whether the answer begins.

        Each token takes ``pace`` seconds to read, starting when it has arrived and the previous
        ones are read. The finish time is a maximum of two linear functions, so only the first and
        last token matter.
        """
        reader, num_drawn = sequence.reader, 1 + len(sampled.before)
        if reader.answer_start is None:
            return self._looks_like_answer(sequence, num_drawn)
        self.read_on(sequence, [ReadTokens(num_drawn, step, now)])
        return False

    def read_on(self, sequence: Sequence, passes: Iterable[ReadTokens]) -> None:
        """Let a reader of the answer read the tokens of passes, the oldest first."""
        reader = sequence.reader
        if reader.answer_start is None or not sequence.is_read:
            return
        service = sequence.request.standing.service
        pace = self._pace if service is None or service.tpot is None else service.tpot
        until = reader.in_hand_until
        for num_drawn, step, last_at in passes:
            if num_drawn == 1:
                until = (until if until > last_at else last_at) + pace
                continue
            reading = num_drawn * pace
            first_at = last_at - (num_drawn - 1) * step
            until = max(until + reading, first_at + reading, last_at + pace)
        reader.in_hand_until = until

    def _looks_like_answer(self, sequence: Sequence, num_drawn: int) -> bool:
        """Note where the answer begins, if that is known now; return whether it is."""
        markers, output = self._markers, sequence.output
        is_decided = len(output) - num_drawn < markers.decided_at <= len(output)
        if markers.ends_with_end(output):
            sequence.reader.answer_start = len(output)
        elif is_decided and markers.never_thinks(sequence.request.prompt_token_ids, output):
            sequence.reader.answer_start = 0
        return sequence.reader.answer_start is not None
