"""The steps from a layer's first product to its attention: norms, rotation, the pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEADS_A_PROGRAM = 16


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    num_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rotate queries and keys, store keys and values, return the queries (rows, heads, size).

    ``qkv`` (rows, (heads + 2 KV heads) * size), contiguous, holds queries, then keys, then values.
    ``cos`` and ``sin`` (rows, size / 2 or more) hold each row's angles, one for each pair of
    dimensions ``i`` and ``i + size / 2``. ``slots`` (rows,): a row with a negative slot is not
    stored. ``norms``: weights (size,) of the RMSNorm that each query head and each key head gets
    before the rotation.
    """
    rows, (_, num_kv_heads, size) = len(qkv), keys.shape
    assert all(tensor.is_contiguous() for tensor in (qkv, keys, values))
    assert qkv.shape[1] == (num_heads + 2 * num_kv_heads) * size
    assert cos.stride() == sin.stride()
    assert cos.stride(1) == 1
    query = torch.empty(rows, num_heads, size, dtype=qkv.dtype, device=qkv.device)
    query_norm, key_norm = norms or (qkv, qkv)  # not read without norms
    grid = (rows, triton.cdiv(num_heads + 2 * num_kv_heads, HEADS_A_PROGRAM))
    if rows:
        _rope_store[grid](
            qkv,
            query,
            cos,
            sin,
            keys,
            values,
            slots,
            query_norm,
            key_norm,
            eps,
            cos.stride(0),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            half=size // 2,
            padded=triton.next_power_of_2(size // 2),
            normed=norms is not None,
            tile=HEADS_A_PROGRAM,
            num_warps=4,
        )
    return query


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _rope_store(
    qkv: tl.tensor,
    query: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    eps: tl.tensor,
    angle_stride: tl.tensor,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    half: tl.constexpr,
    padded: tl.constexpr,
    normed: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Rotate and store one row and ``tile`` heads of any kind, each as two (heads, half) halves."""
    size: tl.constexpr = 2 * half
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * tile + tl.arange(0, tile)
    columns = tl.arange(0, padded)
    held = (head < num_heads + 2 * num_kv_heads)[:, None] & (columns < half)[None, :]
    is_query, turns = head < num_heads, head < num_heads + num_kv_heads
    at = qkv + row * (num_heads + 2 * num_kv_heads) * size
    at += head[:, None] * size + columns[None, :]
    low = tl.load(at, mask=held, other=0.0).to(tl.float32)
    high = tl.load(at + half, mask=held, other=0.0).to(tl.float32)
    if normed:
        square = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / size
        inverse = tl.where(turns, tl.rsqrt(square + eps), 1.0)[:, None]
        low *= inverse * _weight(query_norm, key_norm, is_query, turns, columns, 0, half)
        high *= inverse * _weight(query_norm, key_norm, is_query, turns, columns, half, half)
    angles = row * angle_stride + columns
    c = tl.load(cos + angles, mask=columns < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angles, mask=columns < half, other=0.0).to(tl.float32)[None, :]
    turned_low = tl.where(turns[:, None], low * c - high * s, low)
    turned_high = tl.where(turns[:, None], high * c + low * s, high)

    slot = tl.load(slots + row).to(tl.int64)
    stored = held & (slot >= 0)
    _put(query + row * num_heads * size, head, columns, turned_low, turned_high,
         held & is_query[:, None], half)  # fmt: skip
    _put(keys + slot * num_kv_heads * size, head - num_heads, columns, turned_low, turned_high,
         stored & (turns & (head >= num_heads))[:, None], half)  # fmt: skip
    _put(values + slot * num_kv_heads * size, head - num_heads - num_kv_heads, columns,
         turned_low, turned_high, stored & (head >= num_heads + num_kv_heads)[:, None],
         half)  # fmt: skip


@triton.jit
def _weight(
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    is_query: tl.tensor,
    turns: tl.tensor,
    columns: tl.tensor,
    first: tl.constexpr,
    half: tl.constexpr,
) -> tl.tensor:
    """Return the (heads, half) weights of the norm: the queries', the keys', 1 for values."""
    held = columns < half
    for_query = tl.load(query_norm + first + columns, mask=held, other=0.0).to(tl.float32)
    for_key = tl.load(key_norm + first + columns, mask=held, other=0.0).to(tl.float32)
    either = tl.where(is_query[:, None], for_query[None, :], for_key[None, :])
    return tl.where(turns[:, None], either, 1.0)


@triton.jit
def _put(
    target: tl.tensor,
    head: tl.tensor,
    columns: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    held: tl.tensor,
    half: tl.constexpr,
) -> None:
    at = target + head[:, None] * (2 * half) + columns[None, :]
    tl.store(at, low.to(target.dtype.element_ty), mask=held)
    tl.store(at + half, high.to(target.dtype.element_ty), mask=held)
