"""Penalties and minimum lengths, applied to logits before a token is drawn.

Sparse on purpose: only entries of tokens that a request has seen, or may not draw yet, change.
A large vocabulary therefore costs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headway.forward_pass import PassItem
from headway.request import StreamKey

Ints = NDArray[np.int64]


def adjust(
    logits: torch.Tensor,
    items: Sequence[PassItem],
    eos_token_ids: Sequence[int],
    over: Container[StreamKey] = frozenset(),
) -> torch.Tensor:
    """Return the logits with penalties and masks; ``logits`` itself if none applies.

    The repetition penalty (CTRL, as in vLLM) reads prompt and output; presence and frequency
    penalties (OpenAI's) read the output. Before ``min_tokens`` neither an end of sequence nor a
    stop token can be drawn, unless the grammar of the request is ``over``.
    """
    penalised = [n for n, item in enumerate(items) if item.sampling.has_penalties]
    short = [n for n, item in enumerate(items) if _is_short(item) and item.key not in over]
    if not penalised and not short:
        return logits
    logits = logits.clone()
    if penalised:
        _repetition(logits, items, penalised)
        _presence_and_frequency(logits, items, penalised)
    if short:
        _forbid_ends(logits, items, short, eos_token_ids)
    return logits


def _is_short(item: PassItem) -> bool:
    return item.num_output_tokens < item.sampling.min_tokens


def _output(item: PassItem) -> Sequence[int]:
    """Return the tokens drawn before the pass was planned: the list may have grown since."""
    return item.output_token_ids[: item.num_output_tokens]


def _repetition(logits: torch.Tensor, items: Sequence[PassItem], rows: Sequence[int]) -> None:
    vocab_size = logits.shape[-1]
    seen = [
        np.union1d(
            _entries(n, items[n].prompt_token_ids, vocab_size),
            _entries(n, _output(items[n]), vocab_size),
        )
        for n in rows
    ]
    where = torch.from_numpy(np.concatenate(seen)).to(logits.device)
    factor = _repeated(logits, [items[n].sampling.repetition_penalty for n in rows], seen)
    flat = logits.view(-1)
    values = flat[where]
    # A factor near 0 must not make an infinity: no distribution could hold two of them.
    most = torch.finfo(logits.dtype).max
    flat[where] = torch.where(values > 0, values / factor, values * factor).clamp(-most, most)


def _presence_and_frequency(
    logits: torch.Tensor, items: Sequence[PassItem], rows: Sequence[int]
) -> None:
    vocab_size = logits.shape[-1]
    counted = [
        np.unique(_entries(n, _output(items[n]), vocab_size), return_counts=True) for n in rows
    ]
    seen = [entries for entries, _ in counted]
    counts = np.concatenate([count for _, count in counted])
    presence = _repeated(logits, [items[n].sampling.presence_penalty for n in rows], seen)
    frequency = _repeated(logits, [items[n].sampling.frequency_penalty for n in rows], seen)
    where = torch.from_numpy(np.concatenate(seen)).to(logits.device)
    logits.view(-1)[where] -= presence + frequency * torch.from_numpy(counts).to(logits.device)


def _forbid_ends(
    logits: torch.Tensor,
    items: Sequence[PassItem],
    rows: Sequence[int],
    eos_token_ids: Sequence[int],
) -> None:
    ends = [
        _entries(n, [*eos_token_ids, *items[n].sampling.stop_token_ids], logits.shape[-1])
        for n in rows
    ]
    where = torch.from_numpy(np.concatenate(ends)).to(logits.device)
    logits.view(-1)[where] = float("-inf")


def _entries(row: int, token_ids: Sequence[int], vocab_size: int) -> Ints:
    """Return the ids' places in the flattened logits, without ids that the model lacks."""
    ids = np.fromiter(token_ids, np.int64, len(token_ids))
    return ids[(ids >= 0) & (ids < vocab_size)] + row * vocab_size


def _repeated(
    logits: torch.Tensor, values: Sequence[float], groups: Sequence[Ints]
) -> torch.Tensor:
    """Repeat each group's value for each of its entries."""
    spread = np.repeat(np.array(values), [len(group) for group in groups])
    return torch.from_numpy(spread).to(logits.device, logits.dtype)
