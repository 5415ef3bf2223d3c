"""Splitting a decode batch's contexts into parts of like size, on the device, once a pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from services.worker.engine.gpu.attend import padded_requests

MIN_PART_TOKENS = 128
PARTS_PER_PROCESSOR = 4
PARTS_A_PROGRAM = 16


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The parts of a batch: part ``p`` is tokens ``begins[p]`` to ``ends[p]`` of ``owners[p]``.

    ``owners``, ``begins``, ``ends`` (parts,) int32, the owner -1 for an unused part;
    ``firsts`` (requests + 1,) int32, each request's first part. The layers of a pass share
    them and the scratch ``partial`` (parts, heads, size) and ``weights`` (parts, heads), both
    float32.
    """

    owners: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor
    firsts: torch.Tensor
    partial: torch.Tensor
    weights: torch.Tensor


def wanted_parts(num_kv_heads: int, num_processors: int) -> int:
    """Return the number of parts that fill the device, with a program per KV head each."""
    return max(1, PARTS_PER_PROCESSOR * num_processors // num_kv_heads)


def plan_decode(
    lengths: torch.Tensor, num_heads: int, num_kv_heads: int, size: int, num_processors: int
) -> DecodePlan:
    """Plan for contexts of ``lengths`` (requests,) int32 tokens, at most 2**31 together.

    A long context gets more parts than a short one. With W parts wanted none is longer than
    the whole batch over W (at least ``MIN_PART_TOKENS``), so there are at most
    requests + W of them: shapes follow from the number of requests alone.
    """
    requests, wanted = len(lengths), wanted_parts(num_kv_heads, num_processors)
    parts, device = requests + wanted, lengths.device
    table = torch.empty(3, parts, dtype=torch.int32, device=device)
    firsts = torch.empty(requests + 1, dtype=torch.int32, device=device)
    _plan[(triton.cdiv(parts, PARTS_A_PROGRAM),)](
        lengths,
        firsts,
        table,
        requests,
        parts,
        wanted,
        least=MIN_PART_TOKENS,
        width=padded_requests(requests),
        tile=PARTS_A_PROGRAM,
    )
    partial = torch.empty(parts, num_heads, size, dtype=torch.float32, device=device)
    weights = torch.empty(parts, num_heads, dtype=torch.float32, device=device)
    return DecodePlan(table[0], table[1], table[2], firsts, partial, weights)


@triton.jit(
    do_not_specialize=["requests", "parts", "wanted"],
    do_not_specialize_on_alignment=["lengths"],
)
def _plan(
    lengths: tl.tensor,
    firsts: tl.tensor,
    table: tl.tensor,
    requests: tl.tensor,
    parts: tl.tensor,
    wanted: tl.tensor,
    least: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write ``tile`` parts per program; each program computes all requests' shares (cheap)."""
    request = tl.arange(0, width)
    length = tl.load(lengths + request, mask=request < requests, other=0)
    limit = tl.maximum(tl.cdiv(tl.sum(length, 0), wanted), least)
    # Even parts, in whole multiples of the least; an empty context has one empty part.
    even = tl.cdiv(length, tl.maximum(tl.cdiv(length, limit), 1))
    step = tl.maximum(tl.cdiv(even, least), 1) * least
    count = tl.where(request < requests, tl.maximum(tl.cdiv(length, step), 1), 0)
    stop = tl.cumsum(count, 0)
    if tl.program_id(0) == 0:
        tl.store(firsts + request + 1, stop, mask=request < requests)
        tl.store(firsts + request, tl.zeros_like(stop), mask=request == 0)

    part = tl.program_id(0) * tile + tl.arange(0, tile)
    first = (stop - count)[None, :]
    own = (part[:, None] >= first) & (part[:, None] < stop[None, :])
    begin = tl.sum(tl.where(own, (part[:, None] - first) * step[None, :], 0), 1)
    reach = tl.sum(tl.where(own, step[None, :], 0), 1)
    end = tl.minimum(begin + reach, tl.sum(tl.where(own, length[None, :], 0), 1))
    owner = tl.sum(tl.where(own, request[None, :] + 1, 0), 1) - 1
    tl.store(table + part, owner, mask=part < parts)
    tl.store(table + parts + part, begin, mask=part < parts)
    tl.store(table + 2 * parts + part, end, mask=part < parts)
