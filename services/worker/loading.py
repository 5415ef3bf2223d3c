"""From a worker's configuration to its backend."""

from __future__ import annotations

from headway.errors import Code, HeadwayError
from services.worker.config import WorkerConfig
from services.worker.engine.backend import TorchBackend
from services.worker.engine.model.tensor_parallel import group_size
from services.worker.sizing import blocks_per_unit, host_blocks_per_unit


def load_backend(config: WorkerConfig) -> TorchBackend:
    """The model with its KV pool; HeadwayError for what cannot be served.

    Under torchrun every process calls this, and each holds its share.
    """
    if group_size() > 1 and config.role != "unified":
        message = (
            f"role is {config.role!r}; a worker of several processes sends and takes no KV: its "
            "role must be 'unified'"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="role")
    return TorchBackend.load(
        config.model,
        device=config.device,
        dtype=config.dtype,
        block_size=config.block_size,
        num_blocks=lambda size: config.dp * blocks_per_unit(config, size),
        num_threads=config.num_threads or None,
        num_host_blocks=lambda size: config.dp * host_blocks_per_unit(config, size),
        quantization=config.quantization,
        max_model_len=config.max_model_len,
        screens=config.screened_head,
        kernels=config.kernels,
    )


def follow(config: WorkerConfig) -> None:
    """Hold a share of another process's model, until that one ends."""
    load_backend(config).follow()
