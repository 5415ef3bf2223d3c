"""The gated activation between an MLP's two products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 1024


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * up`` (rows, width) of ``gate_up`` (rows, 2 * width), gates first."""
    assert gate_up.is_contiguous()
    assert gate_up.shape[1] % 2 == 0
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    tile = min(TILE, triton.next_power_of_2(width))
    if rows:
        _silu_mul[(rows, triton.cdiv(width, tile))](gate_up, output, width, tile, num_warps=4)
    return output


@triton.jit
def _silu_mul(gate_up: tl.tensor, output: tl.tensor, width: tl.tensor, tile: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    held = columns < width
    at = gate_up + row * 2 * width + columns
    gate = tl.load(at, mask=held, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=held, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * width + columns, result.to(output.dtype.element_ty), mask=held)
