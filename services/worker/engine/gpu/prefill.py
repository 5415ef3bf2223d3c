"""Paged attention of a ragged batch: each request has rows at the end of its context."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from services.worker.engine.gpu.attend import (
    LOG2_E,
    Tile,
    check_pool,
    padded_requests,
    padded_size,
    visit,
)


def prefill_tile(padded: int, itemsize: int) -> Tile:
    """Return the program's shape; rows are query rows times the heads that share a KV head."""
    if itemsize > 2:
        return Tile(32, 32, warps=4, stages=2) if padded > 128 else Tile(64, 32, 4, 2)
    if padded > 128:
        return Tile(128, 32, warps=8, stages=2)
    return Tile(128, 64, warps=8, stages=3)


def prefill_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    firsts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    block_size: int,
    scale: float,
    output: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attend with ``query`` (rows, heads, size) over each request's context, causal.

    Request ``i`` has the rows from ``firsts[i]`` to ``firsts[i + 1]`` (``firsts`` is int32,
    (requests + 1,), from 0 to rows), which are the last tokens of its ``lengths[i]`` (int32,
    (requests,)); all of the context is in the pool, at ``tables`` (requests, blocks) int32.
    ``output`` is made and ``tile`` chosen by shape where none is given.
    """
    check_pool(query, keys, values)
    rows, num_heads, size = query.shape
    num_kv_heads = keys.shape[1]
    grouped, padded = num_heads // num_kv_heads, padded_size(size)
    tile = tile or prefill_tile(padded, query.element_size())
    tile_rows = max(tile.rows, triton.next_power_of_2(grouped))
    output = torch.empty_like(query) if output is None else output
    requests = len(lengths)
    # A request whose rows begin in the middle of a tile takes one tile more.
    num_tiles = rows // (tile_rows // grouped) + requests
    _attend[(num_kv_heads, num_tiles)](
        query,
        keys,
        values,
        output,
        tables,
        firsts,
        lengths,
        scale * LOG2_E,
        tables.stride(0),
        requests,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        size=size,
        padded=padded,
        width=padded_requests(requests),
        rows=tile_rows,
        tile=tile.tokens,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return output


@triton.jit(
    do_not_specialize=["requests", "table_stride"],
    do_not_specialize_on_alignment=["tables", "firsts", "lengths"],
)
def _attend(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    output: tl.tensor,
    tables: tl.tensor,
    firsts: tl.tensor,
    lengths: tl.tensor,
    scale: tl.tensor,
    table_stride: tl.tensor,
    requests: tl.tensor,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    block_size: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Compute a tile of one request's rows and one KV head; the longest tiles come first."""
    grouped: tl.constexpr = num_heads // num_kv_heads
    steps: tl.constexpr = rows // grouped
    kv_head, index = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    request = tl.arange(0, width)
    starts = tl.load(firsts + request, mask=request < requests, other=0) // steps + request
    owner = tl.sum(((starts <= index) & (request < requests)).to(tl.int32), 0) - 1
    first, stop = tl.load(firsts + owner), tl.load(firsts + owner + 1)
    offset = (index - first // steps - owner) * steps
    if first + offset >= stop:
        return
    length = tl.load(lengths + owner)
    before = length - (stop - first) + offset  # tokens that the tile's first row follows

    row, columns = tl.arange(0, rows), tl.arange(0, padded)
    step, head = row // grouped, kv_head * grouped + row % grouped
    held = ((step < steps) & (first + offset + step < stop))[:, None] & (columns < size)[None, :]
    where = (first + offset + step).to(tl.int64) * num_heads + head
    where = where[:, None] * size + columns[None, :]
    block_table = tables + owner.to(tl.int64) * table_stride
    at = kv_head * size
    stride: tl.constexpr = num_kv_heads * size
    seen = before + step + 1
    queries = tl.load(query + where, mask=held, other=0.0)
    total = tl.zeros([rows, padded], tl.float32)
    peak, mass = tl.full([rows], float("-inf"), tl.float32), tl.zeros([rows], tl.float32)
    common = (before + 1) // tile * tile  # tiles of tokens that every row sees whole
    total, peak, mass = visit(
        queries, total, peak, mass, keys + at, values + at, block_table, seen, 0, common,
        scale, stride, block_size, size, padded, tile, False,
    )  # fmt: skip
    total, peak, mass = visit(
        queries, total, peak, mass, keys + at, values + at, block_table, seen, common,
        tl.minimum(before + steps, length), scale, stride, block_size, size, padded, tile, True,
    )  # fmt: skip
    mean = (total / mass[:, None]).to(output.dtype.element_ty)
    tl.store(output + where, mean, mask=held)
