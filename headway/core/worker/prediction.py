"""Remaining lengths of requests: the predictor's answers, and estimates between them.

A batching policy that ranks by lengths has each decoding request asked for at its first pass here
and then every k-th token (STAR, section 4). Where reports alone show them, one pass before each
report asks for all that are k tokens further: what nobody reads is not predicted. Nothing waits for
an answer, and the next one makes up for a lost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from headway.cluster import Role
from headway.core.worker.events import AskPredictor, Predicted
from headway.core.worker.sequence import Length, Sequence
from headway.forward_pass import HiddenStates, PassItem
from headway.policies.estimation import AsOf, Estimation
from headway.request import Request, StreamKey

Oracle = Callable[[StreamKey], int]
"""A function that knows a request's final output tokens: the simulator has one."""

Find = Callable[[StreamKey], Sequence | None]


class Predictions:
    """The keeper of every request's ``Length``.

    ``every``: k, tokens between two predictions of a request; 0 for none. ``estimation``: of
    remaining lengths; without it a request's own prediction counts down.
    """

    def __init__(
        self, role: Role, every: int, oracle: Oracle | None, estimation: Estimation | None
    ) -> None:
        self._every = every if role is not Role.PREFILL else 0
        self._oracle = oracle
        self._estimation = estimation
        self.is_on = False
        """True if there is a predictor that knows the model."""
        self.ranks_requests = False
        """True if the batching policy reads remaining lengths."""
        self.is_reported = False
        """True if the scheduler's policies read them in this worker's reports."""
        self.ask_at = inf
        """Instant from which a pass asks for what the next report shows; infinite once it has."""

    def of(self, request: Request) -> Length:
        """Return what is known of an arriving request; ``estimate`` follows."""
        total, num_output_tokens = request.predicted_output_tokens, len(request.output_token_ids)
        length = Length(total or None)
        if self._oracle is not None:
            length.true_total = self._oracle(request.key)
        if request.is_predicted:
            length.prediction = max(0.0, total - num_output_tokens)
            length.predicted_at = num_output_tokens
        return length

    def estimate(self, sequence: Sequence) -> None:
        """Estimate the remaining length, if there is an estimation policy."""
        if self._estimation is None:
            return
        sequence.length.estimated_at = len(sequence.output)
        remaining = self._estimation.remaining(sequence)
        if remaining is not None:
            sequence.length.total = len(sequence.output) + remaining

    @property
    def may_wait(self) -> bool:
        """True if an estimate may be made when it is read, as of the tokens at which it was due."""
        return not self.ranks_requests and getattr(self._estimation, "follows_from_tokens", False)

    def due_in(self, sequence: Sequence) -> float:
        """Return the tokens until its next estimate; infinite if none is made, or it may wait."""
        estimation, length = self._estimation, sequence.length
        if estimation is None or self.may_wait:
            return inf
        return max(1, estimation.interval - (len(sequence.output) - length.estimated_at))

    def drew(self, sequence: Sequence) -> bool:
        """Note that a token was drawn; return whether there is a new estimate."""
        estimation = self._estimation
        if estimation is None:
            return False
        if len(sequence.output) - sequence.length.estimated_at < estimation.interval:
            return False
        self.estimate(sequence)
        return True

    def sync(self, sequence: Sequence, ends: Iterable[int]) -> None:
        """Make the estimate that has waited; ``ends``: output tokens when passes ended."""
        estimation, length = self._estimation, sequence.length
        if estimation is None or not self.may_wait:
            return
        due: list[int] = []
        for num_output_tokens in ends:
            if num_output_tokens - length.estimated_at >= estimation.interval:
                length.estimated_at = num_output_tokens
                due.append(num_output_tokens)
        for num_output_tokens in reversed(due):  # the newest that says anything stands
            left = None if length.true_total is None else length.true_total - num_output_tokens
            num_prompt = sequence.num_prompt_tokens
            remaining = estimation.remaining(
                AsOf(sequence.key, num_prompt, num_output_tokens, left)
            )
            if remaining is not None:
                length.total = num_output_tokens + remaining
                return

    # --- the predictor ----------------------------------------------------------------

    def wanted(
        self, in_pass: Iterable[tuple[PassItem, Sequence]], *, now: float
    ) -> tuple[int, ...]:
        """Return the places of requests that are due for a prediction; none if nobody reads it."""
        is_read = self.ranks_requests or (self.is_reported and now >= self.ask_at)
        if not (is_read and self.is_on and self._every):
            return ()
        due = tuple(n for n, (item, s) in enumerate(in_pass) if self._is_due(item, s.length))
        if due:
            self.ask_at = inf
        return due

    def _is_due(self, item: PassItem, length: Length) -> bool:
        num_output_tokens = item.num_output_tokens
        if not (item.sample and num_output_tokens):
            return False
        asked_at = length.asked_at
        if asked_at is not None and num_output_tokens - asked_at < self._every:
            return False
        length.asked_at = num_output_tokens
        return True

    def ask(self, hidden: HiddenStates, find: Find) -> list[AskPredictor]:
        """Have the pass's hidden states scored, for requests that continue here.

        A state belongs to the last computed token; the token drawn from it is the first remaining
        one.
        """
        rows: list[int] = []
        num_output_tokens: list[int] = []
        num_prompt_tokens: list[int] = []
        for row, key in enumerate(hidden.keys):
            sequence = find(key)
            if sequence is not None and sequence.ended is None:
                rows.append(row)
                num_output_tokens.append(len(sequence.output) - 1)
                num_prompt_tokens.append(sequence.num_prompt_tokens)
        if not rows:
            return []
        if len(rows) < len(hidden.keys):
            keys = tuple(hidden.keys[row] for row in rows)
            hidden = HiddenStates(keys, hidden.values[rows])
        return [AskPredictor(hidden, tuple(num_output_tokens), tuple(num_prompt_tokens))]

    def take(self, predicted: Predicted, find: Find) -> list[Sequence]:
        """Store the predictor's answers; return the requests that they change.

        Ignore invalid lengths, and answers older than the last one. ``weight`` is of this answer
        against the request's earlier ones.
        """
        changed: list[Sequence] = []
        columns = (predicted.keys, predicted.num_output_tokens, predicted.remaining)
        for key, num_output_tokens, remaining in zip(*columns, strict=True):
            sequence = find(key)
            if sequence is None or not 0 <= remaining < inf:
                continue
            length = sequence.length
            if length.prediction is not None:
                if num_output_tokens < length.predicted_at:
                    continue
                before = length.predicted_at + length.prediction - num_output_tokens
                weight = predicted.weight
                remaining = max(0.0, (1 - weight) * before + weight * remaining)
            length.total = num_output_tokens + remaining
            length.prediction, length.predicted_at = remaining, num_output_tokens
            self.estimate(sequence)
            changed.append(sequence)
        return changed
