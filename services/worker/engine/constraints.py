"""Constraints on the tokens that may be drawn, applied to logits after the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headway.core.reasoning import Markers
from headway.forward_pass import PassItem
from headway.request import Constraints
from services.worker.engine.grammar import Masks
from services.worker.engine.masks import Mask

_NEVER = float("-inf")


def constrain(logits: torch.Tensor, items: Sequence[PassItem], masks: Masks) -> torch.Tensor:
    """Return the logits (rows, vocabulary) with -inf for what may not be drawn, and biases.

    ``logits`` itself if no item has constraints.
    """
    bound = [n for n, item in enumerate(items) if item.sampling.constraints is not None]
    if not bound:
        return logits
    logits = logits.clone()
    for n in bound:
        item, constraints = items[n], items[n].sampling.constraints
        assert constraints is not None, "chosen for its constraints"
        _bias(logits[n], constraints)
        _forbid_bad_words(logits[n], item, constraints)
        mask = masks.get(item.key)
        if mask is not None:
            _keep_admitted(logits[n], mask)
        _end_reasoning(logits[n], item, constraints)
    return logits


def _bias(row: torch.Tensor, constraints: Constraints) -> None:
    """Add the biases, and keep the allowed tokens alone (vLLM's order)."""
    biases = zip(constraints.biased_token_ids, constraints.biases, strict=True)
    known = [(token, bias) for token, bias in biases if token < len(row)]
    if known:
        places, added = zip(*known, strict=True)
        row.index_add_(0, _tensor(places, row), torch.tensor(added).to(row))
    if constraints.allowed_token_ids:
        where = _tensor(constraints.allowed_token_ids, row)
        kept = row[where]
        row.fill_(_NEVER)
        row[where] = kept


def _forbid_bad_words(row: torch.Tensor, item: PassItem, constraints: Constraints) -> None:
    """Forbid the last token of each bad word whose other tokens were just drawn."""
    count = item.num_output_tokens
    lasts = [
        word.token_ids[-1]
        for word in constraints.bad_words
        if _ends_with(item.output_token_ids, count, word.token_ids[:-1])
    ]
    if lasts:
        row[_tensor(lasts, row)] = _NEVER


def _keep_admitted(row: torch.Tensor, mask: Mask) -> None:
    """Forbid what the mask does not admit; its substitute is as likely as the best of that."""
    admitted = torch.from_numpy(mask.admitted).to(row.device, torch.bool)
    if mask.instead is not None and mask.instead < len(row) and not bool(admitted.all()):
        row[mask.instead] = torch.maximum(row[mask.instead], row[~admitted].max())
    row.masked_fill_(~admitted, _NEVER)


def _end_reasoning(row: torch.Tensor, item: PassItem, constraints: Constraints) -> None:
    """Leave the next token of the reasoning's end alone once its budget is spent."""
    budget = constraints.reasoning_budget
    if budget is None:
        return
    markers = Markers(constraints.reasoning_end, constraints.reasoning_start)
    token = markers.forced(item.output_token_ids[: item.num_output_tokens], budget)
    if token is not None and token < len(row):
        row.fill_(_NEVER)
        row[token] = 0.0


def _tensor(token_ids: Sequence[int], row: torch.Tensor) -> torch.Tensor:
    """Return the ids that the model has."""
    return torch.tensor([i for i in token_ids if i < len(row)], device=row.device, dtype=torch.long)


def _ends_with(output: Sequence[int], count: int, tokens: tuple[int, ...]) -> bool:
    return len(tokens) <= count and tuple(output[count - len(tokens) : count]) == tokens
