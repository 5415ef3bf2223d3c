"""Paged attention over one flattened, ragged batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch.nn.functional import scaled_dot_product_attention

from services.worker.engine.kv.pool import KvPool


class Reads(Enum):
    """The form in which a decoder reads contexts; prompts are read as slots in the second.

    In the last one every row of a prompt has a context of its own, as if it were decoded.
    """

    SLOTS = "slots"
    DECODES_BY_TABLE = "decodes by table"
    TABLES = "tables"
    ROWS_BY_TABLE = "rows by table"


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
class Contexts:
    """The contexts of a batch's requests as kernels take them, requests of one row first.

    ``tables`` (requests, blocks) and ``lengths`` (requests,) are int32; ``firsts`` int32, where
    each of the others has its rows, counted from the first of those, and where they end; None
    where there are no others.
    """

    num_decodes: int
    tables: torch.Tensor
    lengths: torch.Tensor
    firsts: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A flattened batch: the slots of its rows, and the contexts that they read.

    Kernels read ``contexts``; without kernels ``decodes`` and ``prefills`` are read. A CPU's
    kernels read the ``contexts`` of decodes alone, and ``prefills``.
    """

    pool: KvPool
    slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...] = ()
    prefills: tuple[PrefillSpan, ...] = ()
    contexts: Contexts | None = None


def attend(
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Store the rows' keys and values, then attend: (rows, heads * size).

    ``query`` is (rows, heads, size), ``key`` and ``value`` (rows, KV heads, size). ``softcap``:
    what scores s are capped by, ``c · tanh(s / c)``; None: they are not.
    """
    keys, values = batch.pool.keys[layer], batch.pool.values[layer]
    keys.index_copy_(0, batch.slots, key)
    values.index_copy_(0, batch.slots, value)
    parts = [_decode(query, keys, values, group, scale, softcap) for group in batch.decodes]
    parts += attend_prefills(layer, query, key, value, batch, scale, softcap)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_prefills(
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    softcap: float | None = None,
) -> Iterator[torch.Tensor]:
    """Yield each prompt's rows (rows, heads * size); its keys and values are stored already."""
    keys, values = batch.pool.keys[layer], batch.pool.values[layer]
    for span in batch.prefills:
        rows = slice(span.first, span.stop)
        if span.slots is None:
            fresh = (key[rows].transpose(0, 1), value[rows].transpose(0, 1))
            yield _prefill(query[rows], *fresh, None, scale, softcap)
        else:
            context = (_context(keys, span.slots), _context(values, span.slots))
            yield _prefill(query[rows], *context, span.mask, scale, softcap)


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: DecodeGroup,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with one row per request; heads that share a KV head stand in for rows."""
    num_rows = group.stop - group.first
    num_kv_heads, size = keys.shape[1:]
    shape = (num_rows, -1, num_kv_heads, size)
    output = _attention(
        query[group.first : group.stop].reshape(num_rows, num_kv_heads, -1, size),
        keys.index_select(0, group.slots).view(shape).transpose(1, 2),
        values.index_select(0, group.slots).view(shape).transpose(1, 2),
        group.mask,
        scale,
        softcap,
    )
    return output.reshape(num_rows, -1)


def _context(plane: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return one request's keys or values: (KV heads, context, size)."""
    return plane.index_select(0, slots).transpose(0, 1)


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with one request's rows (rows, heads, size) over (KV heads, context, size).

    Without a mask the attention is causal.
    """
    output = _attention(
        query.transpose(0, 1).unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        mask,
        scale,
        softcap,
        is_causal=mask is None,
    )
    return output[0].transpose(0, 1).reshape(len(query), -1)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Attend with (requests, heads, rows, size) over (requests, KV heads, context, size)."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if softcap is None:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
    key, value = (each.repeat_interleave(heads // kv_heads, 1) for each in (key, value))
    scores = torch.tanh(query @ key.transpose(-2, -1) * (scale / softcap)) * softcap
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
