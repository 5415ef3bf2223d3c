"""Constraints on the tokens that may be drawn, applied to logits after the penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from headway.core.reasoning import Markers
from headway.forward_pass import PassItem
from headway.request import Constraints
from services.worker.engine.grammar import Masks
from services.worker.engine.masks import Mask

_NEVER = float("-inf")
_LEAST = 512  # bytes that the smallest tensor takes
_Name = tuple[int, int, torch.dtype, torch.device]


class _Bounds(NamedTuple):
    """The biases and the allowed tokens of one request, on the device."""

    biased: torch.Tensor
    biases: torch.Tensor
    forbidden: torch.Tensor | None
    """True for each token that may not be drawn; None: all may."""


class RecentBounds:
    """The bounds of requests that draw now: to read thousands of ids takes longer than a draw.

    A generation ends once it takes ``most`` bytes of the device: a single allowed token has a row
    of the vocabulary. What was not asked for in one is let go with the next.
    """

    def __init__(self, most: int = 2**26) -> None:
        self._most = most
        self._new: dict[_Name, tuple[Constraints, _Bounds]] = {}
        self._old: dict[_Name, tuple[Constraints, _Bounds]] = {}
        self._num_bytes = 0

    def of(self, constraints: Constraints, row: torch.Tensor) -> _Bounds:
        """Return the bounds of logits like this row (vocabulary,)."""
        name = id(constraints), len(row), row.dtype, row.device  # kept, so that the id is its own
        kept = self._new.get(name)
        if kept is None:
            if self._num_bytes >= self._most:
                self._old, self._new, self._num_bytes = self._new, {}, 0
            kept = self._old.get(name) or (constraints, _bounds_of(constraints, row))
            self._new[name] = kept
            self._num_bytes += sum(_LEAST + t.nbytes for t in kept[1] if t is not None)
        return kept[1]


_RECENT = RecentBounds()


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
        if constraints.biased_token_ids or constraints.allowed_token_ids:
            _bias(logits[n], _RECENT.of(constraints, logits[n]))
        _forbid_bad_words(logits[n], item, constraints)
        mask = masks.get(item.key)
        if mask is not None:
            _keep_admitted(logits[n], mask)
        _end_reasoning(logits[n], item, constraints)
    return logits


def _bias(row: torch.Tensor, bounds: _Bounds) -> None:
    """Add the biases, and keep the allowed tokens alone (vLLM's order)."""
    row.index_add_(0, bounds.biased, bounds.biases)
    if bounds.forbidden is not None:
        row.masked_fill_(bounds.forbidden, _NEVER)


def _bounds_of(constraints: Constraints, row: torch.Tensor) -> _Bounds:
    """Read the ids that the model has."""
    biases = zip(constraints.biased_token_ids, constraints.biases, strict=True)
    known = [(token, bias) for token, bias in biases if token < len(row)]
    forbidden = None
    if constraints.allowed_token_ids:
        forbidden = torch.ones_like(row, dtype=torch.bool)
        forbidden[_tensor(constraints.allowed_token_ids, row)] = False
    added = torch.tensor([bias for _, bias in known]).to(row)
    return _Bounds(_tensor([token for token, _ in known], row), added, forbidden)


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
