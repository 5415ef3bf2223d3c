"""Paged attention over one flattened, ragged batch, through transformers' attention interface.

The model's own code calls :func:`paged_attention` in each layer with the batch's fresh
queries, keys and values; :class:`PagedBatch` travels to it as a keyword argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.worker.engine.kv import KvPool

ATTENTION_NAME = "headway_paged"


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Consecutive rows, one token each, with contexts of like length.

    ``slots`` (rows * length) are the contexts' slots, each padded to the longest with its
    own first slot, so that no row ever reads another's memory; ``mask`` (rows, 1, 1, length)
    is minus infinity there, None where nothing is padded.
    """

    first: int
    stop: int
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Consecutive rows of one request's prompt.

    ``slots`` are those of its whole context and ``mask`` (rows, context) its lower-right
    causal mask; both None where the context is these rows.
    """

    first: int
    stop: int
    slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where a flattened batch's rows are stored, and what each of them reads."""

    pool: KvPool
    slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSpan, ...]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    headway_batch: PagedBatch,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Store the rows' keys and values, then attend: (1, heads, rows, size) to (1, rows, …)."""
    layer = module.layer_idx
    assert isinstance(layer, int), "transformers numbers its attention layers"
    keys, values = headway_batch.pool.keys[layer], headway_batch.pool.values[layer]
    keys.index_copy_(0, headway_batch.slots, key[0].transpose(0, 1))
    values.index_copy_(0, headway_batch.slots, value[0].transpose(0, 1))
    rows = query[0].transpose(0, 1)
    parts = [_decode(rows, keys, values, group, scaling) for group in headway_batch.decodes]
    for span in headway_batch.prefills:
        fresh = slice(span.first, span.stop)
        if span.slots is None:
            part = _attend(query, key, value, fresh, None, scaling)
        else:
            past = (_context(keys, span.slots), _context(values, span.slots))
            part = _attend(query, *past, fresh, span.mask, scaling)
        parts.append(part)
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.unsqueeze(0), None


def _decode(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: DecodeGroup,
    scaling: float,
) -> torch.Tensor:
    """One query row per request; the heads that share a KV head stand in for query rows."""
    num_rows = group.stop - group.first
    num_kv_heads, size = keys.shape[1:]
    query = rows[group.first : group.stop].reshape(num_rows, num_kv_heads, -1, size)
    shape = (num_rows, -1, num_kv_heads, size)
    output = scaled_dot_product_attention(
        query,
        keys.index_select(0, group.slots).view(shape).transpose(1, 2),
        values.index_select(0, group.slots).view(shape).transpose(1, 2),
        attn_mask=group.mask,
        scale=scaling,
    )
    return output.reshape(num_rows, -1, size)


def _context(plane: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """One request's keys or values: (1, KV heads, context, size)."""
    return plane.index_select(0, slots).transpose(0, 1).unsqueeze(0)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: slice,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """One request's rows: over themselves without a ``mask``, else over its context."""
    if mask is None:
        key, value = key[:, :, rows], value[:, :, rows]
    output = scaled_dot_product_attention(
        query[:, :, rows],
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, paged_attention)
