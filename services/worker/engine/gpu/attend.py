"""The loop of both attention kernels: a tile of queries visits the context's tokens in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
MAX_HEAD_SIZE = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of a program: query rows, context tokens a step, warps, pipeline stages."""

    rows: int
    tokens: int
    warps: int
    stages: int


def padded_size(size: int) -> int:
    """Return the least power of two that holds a head and suits a matrix product."""
    assert 0 < size <= MAX_HEAD_SIZE, f"head size {size}; kernels take up to {MAX_HEAD_SIZE}"
    return max(16, int(triton.next_power_of_2(size)))


def padded_requests(num_requests: int) -> int:
    """Return a power of two that holds ``num_requests``; most batches share one, and a program."""
    return max(256, int(triton.next_power_of_2(num_requests)))


def check_pool(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Assert that tensors are contiguous, of one dtype and head size, with heads in groups."""
    assert query.is_contiguous(), "queries are (rows, heads, size), contiguous"
    assert keys.is_contiguous(), "a layer's keys are (slots, KV heads, size), contiguous"
    assert values.is_contiguous(), "and so are its values"
    assert keys.shape == values.shape
    assert keys.shape[2] == query.shape[2]
    assert query.shape[1] % keys.shape[1] == 0, "query heads share KV heads evenly"
    assert query.dtype == keys.dtype == values.dtype


@triton.jit
def visit(
    query: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    mass: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    seen: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    slot_stride: tl.tensor,
    block_size: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
    masked: tl.constexpr,
) -> tl.tensor:
    """Continue an online softmax over tokens ``begin`` to ``end`` of one request and KV head.

    ``query`` (rows, padded), ``total`` (rows, padded) the weighted values so far, ``peak`` and
    ``mass`` (rows,) the greatest score (base 2) and the sum of weights; ``keys`` and ``values``
    point at the head, ``table`` at the request's blocks. With ``masked`` row ``r`` sees the
    tokens below ``seen[r]``; without it each sees all, and ``end - begin`` is whole tiles.
    ``begin`` is a multiple of ``tile``: where a block holds whole tiles, a tile reads one entry
    of the table, and its tokens lie side by side.
    """
    columns = tl.arange(0, padded)
    for first in range(begin, end, tile):
        tokens = first + tl.arange(0, tile)
        if block_size % tile == 0:
            block = tl.load(table + first // block_size).to(tl.int64)
            slots = block * block_size + first % block_size + tl.arange(0, tile)
        else:
            if masked:
                blocks = tl.load(table + tokens // block_size, mask=tokens < end, other=0)
            else:
                blocks = tl.load(table + tokens // block_size)
            slots = blocks.to(tl.int64) * block_size + tokens % block_size
        where = slots[:, None] * slot_stride + columns[None, :]
        held = (tokens < end)[:, None] & (columns < size)[None, :]
        if masked:
            key = tl.load(keys + where, mask=held, other=0.0)
            value = tl.load(values + where, mask=held, other=0.0)
        elif size != padded:
            key = tl.load(keys + where, mask=(columns < size)[None, :], other=0.0)
            value = tl.load(values + where, mask=(columns < size)[None, :], other=0.0)
        else:
            key = tl.load(keys + where)
            value = tl.load(values + where)
        scores = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
        if masked:
            scores = tl.where(tokens[None, :] < seen[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        mass = mass * fade + tl.sum(weights, 1)
        total = total * fade[:, None]
        total = tl.dot(weights.to(value.dtype), value, total, input_precision="tf32x3")
        peak = higher
    return total, peak, mass
