"""The decoder on Triton's kernels, but for prompts, which flash-attn-4 attends with."""

from __future__ import annotations

from typing import Any

import torch

from services.worker.engine.gpu.cuda_graphs import Record
from services.worker.engine.gpu.flash import flash_prefill_attention
from services.worker.engine.kv.pool import KvPool
from services.worker.engine.model.kernel_decoder import RECORDED_SIZES, KernelDecoder


class FlashDecoder(KernelDecoder):
    """A kernel decoder with another backend for one kind of pass: prompts."""

    kernels = "triton,flash-attn-4"

    def prepare(
        self,
        pool: KvPool,
        record: Record | None = None,
        sizes: tuple[int, ...] = RECORDED_SIZES,
    ) -> None:
        """Record decode passes, and clear the pool: the library reads blocks to their end."""
        for plane in (*pool.keys, *pool.values):
            plane.zero_()
        super().prepare(pool, record, sizes)

    def _attend_prompts(self, *prompts: torch.Tensor, **settings: Any) -> None:
        flash_prefill_attention(*prompts, **settings)
