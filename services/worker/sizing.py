"""How many KV blocks a worker takes."""

from __future__ import annotations

from headway.blocks import blocks_for
from headway.errors import invalid
from services.worker.config import WorkerConfig
from services.worker.engine.backend import ModelSize

GIB = 2**30  # bytes
MAX_LENGTHS_ON_A_CPU = 64


def blocks_per_unit(config: WorkerConfig, size: ModelSize) -> int:
    """KV blocks of one DP unit.

    Without a number in the configuration: 80 % of a GPU's free memory; on a CPU 1 GiB, or
    ``MAX_LENGTHS_ON_A_CPU`` requests of the longest length where that is less.
    """
    if config.num_blocks:
        return config.num_blocks
    budget = int(config.kv_cache_gib * GIB)
    if not budget and size.free_bytes is not None:
        budget = int(0.8 * size.free_bytes)
    if not budget:
        max_model_len = config.max_model_len or size.max_model_len
        most = MAX_LENGTHS_ON_A_CPU * max_model_len * config.dp
        budget = min(GIB, most * size.kv_bytes_per_token)
    num_tokens = budget // size.kv_bytes_per_token // config.dp
    return max(1, blocks_for(num_tokens + 1, config.block_size) - 1)


def host_blocks_per_unit(config: WorkerConfig, size: ModelSize) -> int:
    """KV blocks of one DP unit in host memory; HeadwayError where that is none of some."""
    block_bytes = config.block_size * size.kv_bytes_per_token
    num_blocks = int(config.host_kv_gib * GIB) // block_bytes // config.dp
    if config.host_kv_gib and not num_blocks:
        least = config.dp * block_bytes / GIB
        raise invalid(
            "host_kv_gib", config.host_kv_gib, f"0 (off) or a block for each DP unit, {least:.2g}"
        )
    return num_blocks
