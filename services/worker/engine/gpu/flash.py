"""Prompts by flash-attn-4 (CuTe DSL, Hopper and Blackwell), over the same pool and tables."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from services.worker.engine.gpu.attend import check_pool

MODULE = "flash_attn.cute"


def has_flash_attention() -> bool:
    """Return whether flash-attn-4 is installed; whether it runs on a card, only a call shows."""
    try:
        return find_spec(MODULE) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def flash_prefill_attention(
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
) -> torch.Tensor:
    """Compute what ``prefill_attention`` does, from the same arguments.

    A block is a page. The library may read a request's last block to its end and multiply what
    it finds there by 0: every slot of the pool must hold a finite number.
    """
    from flash_attn.cute import flash_attn_varlen_func  # it compiles for the card when called

    check_pool(query, keys, values)
    pages = (-1, block_size, *keys.shape[1:])
    attended: Any = flash_attn_varlen_func(
        query,
        keys.view(pages),
        values.view(pages),
        cu_seqlens_q=firsts,
        max_seqlen_q=len(query),
        seqused_k=lengths,
        page_table=tables,
        softmax_scale=scale,
        causal=True,
    )
    attention: torch.Tensor = attended[0]  # the second is the sum of weights
    return attention if output is None else output.copy_(attention)
