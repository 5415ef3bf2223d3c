"""Loads the torch engine from a worker's configuration.

torch is imported here and nowhere else in the shell, and only when an engine is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.blocks import blocks_for
from headway.engine import Backend, ModelSize
from headway.errors import Code, HeadwayError, invalid
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig

if TYPE_CHECKING:
    from services.worker.engine.backend import TorchBackend

GIB = 2**30  # bytes
MAX_LENGTHS_ON_A_CPU = 64


def load_backend(config: WorkerConfig) -> Backend:
    """Load the model, reserve its KV and warm up; HeadwayError for what cannot be served."""
    if config.engine_args:
        message = "engine torch has no --engine-args: its options are flags of their own"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args")
    log = get_logger()
    log.info("loading_model", model=str(config.model))
    backend = _load(config)
    log.info("warming_up")
    backend.warm_up()
    return backend


def follow(config: WorkerConfig) -> None:
    """Hold a share of another process's model until that process ends."""
    _load(config).follow()


def _load(config: WorkerConfig) -> TorchBackend:
    """Load this process's share: under torchrun every process calls this."""
    from services.worker.engine.backend import TorchBackend
    from services.worker.engine.model.tensor_parallel import group_size
    from services.worker.engine.options import EngineOptions
    from services.worker.engine.queueing import QueueingTorchBackend

    if group_size() > 1 and config.role != "unified":
        message = (
            f"role is {config.role!r}; a worker of several processes sends and takes no KV: its "
            "role must be 'unified'"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="role")
    options = EngineOptions(
        num_blocks=lambda size: config.dp * blocks_per_unit(config, size),
        num_host_blocks=lambda size: config.dp * host_blocks_per_unit(config, size),
        block_size=config.tokens_per_block,
        gpu_share=config.gpu_share,
        device=config.device,
        dtype=config.dtype,
        kernels=config.kernels,
        deterministic=config.deterministic,
        quantization=config.quantization,
        max_model_len=config.max_model_len,
        num_threads=config.num_threads,
        lora=config.lora,
    )
    queues = config.async_scheduling and config.device != "cpu" and group_size() == 1
    return (QueueingTorchBackend if queues else TorchBackend).load(config.model, options)


def blocks_per_unit(config: WorkerConfig, size: ModelSize) -> int:
    """Return the KV blocks of one DP unit.

    Without a number in the configuration: 80 % of a GPU's free memory; on a CPU 1 GiB, or
    ``MAX_LENGTHS_ON_A_CPU`` requests of the longest length if that is less.
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
    return max(1, blocks_for(num_tokens + 1, config.tokens_per_block) - 1)


def host_blocks_per_unit(config: WorkerConfig, size: ModelSize) -> int:
    """Return the KV blocks of one DP unit in host memory; HeadwayError if some gives none."""
    block_bytes = config.tokens_per_block * size.kv_bytes_per_token
    num_blocks = int(config.host_kv_gib * GIB) // block_bytes // config.dp
    if config.host_kv_gib and not num_blocks:
        least = config.dp * block_bytes / GIB
        raise invalid(
            "host_kv_gib", config.host_kv_gib, f"0 (off) or a block for each DP unit, {least:.2g}"
        )
    return num_blocks
