"""Headway's sampler in the place of vLLM's: exact seeds, log probabilities, constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from headway.forward_pass import PassItem
from headway.request import SamplingParams
from services.worker.engine.grammar import Masks
from services.worker.engine.sampler import Drawing, Drawn, begin_draw
from services.worker.engine.transfer import sent

Draw = Callable[[torch.Tensor], torch.Tensor]
"""A choice of tokens (rows,) from logits (rows, vocabulary)."""


def refusal(sampling: SamplingParams) -> str:
    """Return why vLLM cannot serve a request with these parameters, "" if it can."""
    if sampling.num_prompt_logprobs is None:
        return ""
    return (
        "log probabilities of a prompt come from Headway's own engine alone: leave out "
        "prompt_logprobs, or echo with logprobs, for a model that vLLM computes"
    )


@dataclass(frozen=True, slots=True)
class RowDraws:
    """The draws of a pass's rows, which the device may still compute."""

    tokens: torch.Tensor
    """A token for each row (rows,), any for one that draws none."""
    rows: Sequence[int] = ()
    drawing: Drawing | None = None

    def read(self) -> Mapping[int, Drawn]:
        """Wait for them; return what was drawn by row, or ``problem_of``'s number."""
        if self.drawing is None:
            return {}
        return dict(zip(self.rows, self.drawing.read(), strict=True))


def begin_rows(
    logits: torch.Tensor,
    items: Sequence[PassItem | None],
    eos_token_ids: Sequence[int],
    masks: Masks,
) -> RowDraws:
    """Draw a token for each row (rows, vocabulary) with an item."""
    rows = [row for row, item in enumerate(items) if item is not None]
    chosen = [item for item in items if item is not None]
    if len(rows) == len(logits):
        drawing = begin_draw(logits, chosen, eos_token_ids, masks=masks)
        return RowDraws(drawing.tokens, rows, drawing)
    tokens = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    if not rows:
        return RowDraws(tokens)
    own = sent(torch.tensor(rows), logits.device)
    drawing = begin_draw(logits[own], chosen, eos_token_ids, masks=masks)
    tokens[own] = drawing.tokens
    return RowDraws(tokens, rows, drawing)
