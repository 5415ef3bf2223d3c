"""Paged attention of one query row per request, its context split over programs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.worker.engine.gpu.attend import (
    LOG2_E,
    Tile,
    check_pool,
    padded_size,
    visit,
)
from services.worker.engine.gpu.plan import MIN_PART_TOKENS, DecodePlan

PARTS_A_STEP = 16


def decode_tile(num_grouped: int, padded: int, itemsize: int) -> Tile:
    """Return the program's shape for ``num_grouped`` heads per KV head: rows are heads."""
    rows = max(16, triton.next_power_of_2(num_grouped))
    tokens = max(16, min(64, 2**14 // (padded * itemsize)))
    return Tile(rows, tokens, warps=4, stages=3)


def decode_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    plan: DecodePlan,
    *,
    block_size: int,
    scale: float,
    output: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attend with each row of ``query`` (requests, heads, size) over its context.

    ``tables`` (requests, blocks) and ``lengths`` (requests,) are int32; a context includes the
    row's own token, stored before. ``plan`` is that of the same lengths. A request of length 0
    reads nothing and gets zeros. ``output`` is made and ``tile`` chosen by
    shape where none is given.
    """
    check_pool(query, keys, values)
    requests, num_heads, size = query.shape
    num_kv_heads = keys.shape[1]
    grouped, padded = num_heads // num_kv_heads, padded_size(size)
    tile = tile or decode_tile(grouped, padded, query.element_size())
    assert MIN_PART_TOKENS % tile.tokens == 0, "parts are whole tiles, but for a context's last"
    output = torch.empty_like(query) if output is None else output
    # The heads of a token lie side by side in memory: their programs run side by side.
    _attend[(num_kv_heads, len(plan.owners))](
        query,
        keys,
        values,
        output,
        tables,
        lengths,
        plan.owners,
        plan.begins,
        plan.ends,
        plan.partial,
        plan.weights,
        scale * LOG2_E,
        tables.stride(0),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        size=size,
        padded=padded,
        rows=tile.rows,
        tile=tile.tokens,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    _merge[(requests, num_heads)](
        output, plan.firsts, plan.partial, plan.weights, size, padded, PARTS_A_STEP, num_warps=4
    )
    return output


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["tables", "lengths", "owners", "begins", "ends"],
)
def _attend(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    output: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    owners: tl.tensor,
    begins: tl.tensor,
    ends: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    scale: tl.tensor,
    table_stride: tl.tensor,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    block_size: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Compute one part and KV head: the rows of the product are the heads that share it."""
    kv_head, part = tl.program_id(0), tl.program_id(1)
    owner = tl.load(owners + part)
    if owner < 0:
        return
    begin, end = tl.load(begins + part), tl.load(ends + part)
    grouped: tl.constexpr = num_heads // num_kv_heads
    row, columns = tl.arange(0, rows), tl.arange(0, padded)
    head = kv_head * grouped + row
    held = (row < grouped)[:, None] & (columns < size)[None, :]
    where = head[:, None] * size + columns[None, :]
    at = owner.to(tl.int64) * num_heads * size
    total, peak, mass = visit(
        tl.load(query + at + where, mask=held, other=0.0),
        tl.zeros([rows, padded], tl.float32),
        tl.full([rows], float("-inf"), tl.float32),
        tl.zeros([rows], tl.float32),
        keys + kv_head * size,
        values + kv_head * size,
        tables + owner.to(tl.int64) * table_stride,
        tl.zeros([rows], tl.int32) + end,
        begin,
        end,
        scale,
        num_kv_heads * size,
        block_size,
        size,
        padded,
        tile,
        True,
    )
    mean = total / tl.where(mass > 0.0, mass, 1.0)[:, None]
    if (begin == 0) & (end == tl.load(lengths + owner)):
        tl.store(output + at + where, mean.to(output.dtype.element_ty), mask=held)
    else:
        at = part.to(tl.int64) * num_heads
        tl.store(partial + at * size + where, mean, mask=held)
        tl.store(weights + at + head, peak + tl.log2(mass), mask=row < grouped)


@triton.jit
def _merge(
    output: tl.tensor,
    firsts: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    size: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Merge the parts of one request and head, by their shares of the softmax's mass."""
    request, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, stop = tl.load(firsts + request), tl.load(firsts + request + 1)
    if stop - first < 2:
        return  # written whole
    columns = tl.arange(0, padded)
    total, mass = tl.zeros([padded], tl.float32), 0.0
    peak = float("-inf")
    for start in range(first, stop, tile):
        part = start + tl.arange(0, tile)
        held = (part < stop)[:, None] & (columns < size)[None, :]
        at = part.to(tl.int64) * num_heads + head
        weight = tl.load(weights + at, mask=part < stop, other=float("-inf"))
        mean = tl.load(partial + at[:, None] * size + columns[None, :], mask=held, other=0.0)
        higher = tl.maximum(peak, tl.max(weight, 0))
        fade, share = tl.exp2(peak - higher), tl.exp2(weight - higher)
        total = total * fade + tl.sum(mean * share[:, None], 0)
        mass = mass * fade + tl.sum(share, 0)
        peak = higher
    where = (request.to(tl.int64) * num_heads + head) * size + columns
    tl.store(output + where, (total / mass).to(output.dtype.element_ty), mask=columns < size)
