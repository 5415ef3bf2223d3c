"""How many KV blocks a worker takes."""

from __future__ import annotations

from headway.blocks import blocks_for
from services.worker.config import WorkerConfig

GIB = 2**30
MAX_LENGTHS_ON_A_CPU = 64


def blocks_per_unit(
    config: WorkerConfig, *, kv_bytes_per_token: int, max_model_len: int, free_bytes: int | None
) -> int:
    """KV blocks of one DP unit.

    ``free_bytes`` is the device's free memory once the weights are loaded; None on a CPU,
    where the default is 1 GiB, or ``MAX_LENGTHS_ON_A_CPU`` requests of the longest length
    where that is less.
    """
    if config.num_blocks:
        return config.num_blocks
    budget = int(config.kv_cache_gib * GIB)
    if not budget and free_bytes is not None:
        budget = int(0.8 * free_bytes)
    if not budget:
        most = MAX_LENGTHS_ON_A_CPU * max_model_len * config.dp
        budget = min(GIB, most * kv_bytes_per_token)
    num_tokens = budget // kv_bytes_per_token // config.dp
    return max(1, blocks_for(num_tokens + 1, config.block_size) - 1)
