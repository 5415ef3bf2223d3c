"""RMSNorm, alone or with the residual added before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return ``hidden`` (rows, width) over its root mean square, times ``weight`` (width,)."""
    return _launch(hidden, None, weight, eps)[0]


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of ``hidden + residual`` and that sum, all (rows, width)."""
    return _launch(hidden, residual, weight, eps)


def _launch(
    hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    assert hidden.is_contiguous()
    assert residual is None or (residual.is_contiguous() and residual.shape == hidden.shape)
    rows, width = hidden.shape
    normed = torch.empty_like(hidden)
    total = hidden if residual is None else torch.empty_like(hidden)
    padded = triton.next_power_of_2(width)
    if rows:
        _norm[(rows,)](
            hidden,
            hidden if residual is None else residual,
            weight,
            normed,
            total,
            width,
            eps,
            padded=padded,
            added=residual is not None,
            num_warps=min(16, max(1, padded // 512)),
        )
    return normed, total


@triton.jit
def _norm(
    hidden: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    total: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    padded: tl.constexpr,
    added: tl.constexpr,
) -> None:
    columns = tl.arange(0, padded)
    held = columns < width
    where = tl.program_id(0).to(tl.int64) * width + columns
    row = tl.load(hidden + where, mask=held, other=0.0).to(tl.float32)
    if added:
        row += tl.load(residual + where, mask=held, other=0.0).to(tl.float32)
        # The norm is of the stored sum, as it was rounded.
        kept = row.to(total.dtype.element_ty)
        tl.store(total + where, kept, mask=held)
        row = kept.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    scale = tl.load(weight + columns, mask=held, other=0.0).to(tl.float32)
    tl.store(normed + where, (row * inverse * scale).to(normed.dtype.element_ty), mask=held)
