"""Remaining lengths by the predictor: which hidden states a pass is asked for, and what comes back.

Every request that decodes is asked for at its first pass here and then every k-th token (STAR,
section 4). Nothing waits for an answer, and one that is lost is made up for k tokens later.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.cluster import Role
from headway.core.worker.events import AskPredictor, Predicted
from headway.core.worker.state import WorkerState
from headway.forward_pass import HiddenStates, PassItem


class Predictions:
    """One worker's; ``every``: k, tokens between predictions of a request, 0 for none at all.

    ``is_ranked_by``: whether the batching policy reads remaining lengths.
    """

    def __init__(self, state: WorkerState, every: int, *, is_ranked_by: bool = False) -> None:
        self._state = state
        self._every = every if state.info.role is not Role.PREFILL else 0
        self._is_ranked_by = is_ranked_by
        self.is_on = False
        """Whether there is a predictor that knows the model."""
        self.is_reported = False
        """Whether the scheduler's policies read them in this worker's reports."""

    def wanted(self, items: Sequence[PassItem]) -> tuple[int, ...]:
        """The places of those whose turn it is; none where nobody reads what would come of it."""
        is_read = self._is_ranked_by or self.is_reported
        if not (is_read and self.is_on and self._every):
            return ()
        return tuple(place for place, item in enumerate(items) if self._is_due(item))

    def _is_due(self, item: PassItem) -> bool:
        num_output_tokens = item.num_output_tokens
        if not (item.sample and num_output_tokens):
            return False
        sequence = self._state.find(item.key)
        assert sequence is not None, "the planner has just chosen it"
        asked_at = sequence.asked_at
        if asked_at is not None and num_output_tokens - asked_at < self._every:
            return False
        sequence.asked_at = num_output_tokens
        return True

    def ask(self, hidden: HiddenStates) -> list[AskPredictor]:
        """Have the pass's hidden states scored, of those requests that go on here.

        A state is of the last token that has been computed: the one drawn from it is the first
        of those that remained.
        """
        rows: list[int] = []
        num_output_tokens: list[int] = []
        num_prompt_tokens: list[int] = []
        for row, key in enumerate(hidden.keys):
            sequence = self._state.find(key)
            if sequence is not None and not sequence.is_over:
                rows.append(row)
                num_output_tokens.append(len(sequence.output) - 1)
                num_prompt_tokens.append(sequence.num_prompt_tokens)
        if not rows:
            return []
        if len(rows) < len(hidden.keys):
            keys = tuple(hidden.keys[row] for row in rows)
            hidden = HiddenStates(keys, hidden.values[rows])
        return [AskPredictor(hidden, tuple(num_output_tokens), tuple(num_prompt_tokens))]

    def take(self, predicted: Predicted) -> None:
        """Believe what is a length, of requests that are here."""
        columns = (predicted.keys, predicted.num_output_tokens, predicted.remaining)
        for key, num_output_tokens, remaining in zip(*columns, strict=True):
            self._state.predict(key, remaining, num_output_tokens, weight=predicted.weight)
