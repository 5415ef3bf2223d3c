"""Log probabilities of prompts, gathered chunk by chunk until the first token is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from headway.forward_pass import PassItem
from headway.request import StreamKey, TokenLogprobs
from services.worker.engine.layout import PassLayout
from services.worker.engine.sampler import best_of

_PART = 64
"""Rows whose logits are held at once."""


class PromptScores:
    """The log probabilities of the prompts that are being prefilled, where they are asked for."""

    def __init__(self, lm_head: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._lm_head = lm_head
        self._scores: dict[StreamKey, dict[int, TokenLogprobs]] = {}

    def gather(self, states: torch.Tensor, layout: PassLayout, items: Sequence[PassItem]) -> None:
        """Take a pass's share of them from ``states`` (rows, hidden size)."""
        for item, last in zip(items, layout.last_rows.tolist(), strict=True):
            count = item.sampling.num_prompt_logprobs
            if count is None or not item.num_scored:
                continue
            prompt = item.prompt_token_ids
            after = prompt[item.start + 1 : item.start + 1 + len(item.token_ids)]
            by_place = self._scores.setdefault(item.key, {})
            first = last + 1 - len(item.token_ids)
            for place in range(0, len(after), _PART):
                tokens = after[place : place + _PART]
                rows = states[first + place : first + place + len(tokens)]
                scores = self._score(rows, tokens, count)
                by_place.update(enumerate(scores, item.start + 1 + place))

    def _score(
        self, rows: torch.Tensor, tokens: Sequence[int], count: int
    ) -> Iterable[TokenLogprobs]:
        """Return those of the tokens that come after the rows, and the best of each row."""
        logprobs = self._lm_head(rows).float().log_softmax(-1)
        ids = torch.tensor(tokens, device=logprobs.device)
        own = logprobs.gather(-1, ids[:, None])[:, 0].tolist()
        values, best = best_of(logprobs, count)
        table = zip(own, best.tolist(), values.tolist(), strict=True)
        return [TokenLogprobs(one, tuple(tops), tuple(values)) for one, tops, values in table]

    def take(self, item: PassItem) -> tuple[TokenLogprobs, ...]:
        """Return and clear those of an item whose first token is drawn; () if some are missing."""
        by_place = self._scores.pop(item.key, {})
        wanted = range(1, len(item.prompt_token_ids))
        return tuple(by_place[n] for n in wanted) if len(by_place) == len(wanted) else ()

    def forget(self, ended: Iterable[StreamKey]) -> None:
        """Drop those of requests that have left this worker."""
        for key in ended:
            self._scores.pop(key, None)
