"""Headway's sampler in the place of vLLM's: exact seeds, log probabilities, constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from headway.forward_pass import PassItem
from headway.request import SamplingParams
from services.worker.engine.grammar import Masks
from services.worker.engine.sampler import Drawn, draw


def refusal(sampling: SamplingParams) -> str:
    """Return why vLLM cannot serve a request with these parameters, "" if it can."""
    if sampling.num_prompt_logprobs is None:
        return ""
    return (
        "log probabilities of a prompt come from Headway's own engine alone: leave out "
        "prompt_logprobs, or echo with logprobs, for a model that vLLM computes"
    )


def draw_rows(
    logits: torch.Tensor,
    items: Sequence[PassItem | None],
    eos_token_ids: Sequence[int],
    masks: Masks,
) -> tuple[torch.Tensor, Mapping[int, Drawn]]:
    """Return a token for each row (rows, vocabulary), and what was drawn by row.

    A row whose item is None draws nothing and gets any token, and so does one without a finite
    logit: what was drawn there is ``problem_of``'s.
    """
    rows = [row for row, item in enumerate(items) if item is not None]
    chosen = [item for item in items if item is not None]
    drawn: dict[int, Drawn] = {}
    if rows:
        own = logits if len(rows) == len(logits) else logits[rows]
        drawn = dict(zip(rows, draw(own, chosen, eos_token_ids, masks=masks), strict=True))
    tokens = [max(0, drawn[row][0]) if row in drawn else 0 for row in range(len(logits))]
    return torch.tensor(tokens, dtype=torch.int32, device=logits.device), drawn
