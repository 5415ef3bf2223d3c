"""Options of the torch engine: which device, which arithmetic, how much KV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from headway.engine import ModelSize
from headway.errors import Code, HeadwayError

Kernels = Literal["auto", "triton", "triton,flash-attn-4", "native", "torch"]
"""Kernels between the matrix products; see ``decoder_class``."""

NumBlocks = int | Callable[[ModelSize], int]
"""A number of blocks, or a function that chooses it once the model is known."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine: how it loads a checkpoint, and the memory of its KV."""

    num_blocks: NumBlocks
    """KV blocks of all DP units together."""
    num_host_blocks: NumBlocks = 0
    """KV blocks in host memory, for requests that wait."""
    block_size: int = 16
    """Tokens per block."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """A key of ``DTYPES``; ``auto``: the checkpoint's."""
    kernels: Kernels = "auto"
    """See ``decoder_class``."""
    deterministic: bool = False
    """Whether other requests, chunks and cached KV may not change a bit of a result."""
    quantization: str = ""
    """Name of a scheme in ``SCHEMES``; "": none."""
    max_model_len: int | None = None
    """Longest request that is wanted, tokens; 0: the model's own; None: anything will do."""
    num_threads: int = 0
    """Threads of torch; 0: as many as torch chooses."""
    gpu_share: float = 1.0
    """Share of a GPU's memory that this engine may use."""
    lora: Mapping[str, str] = field(default_factory=dict)
    """Folders of the model's adapters, by the names that requests use."""


def find_device(name: str) -> torch.device:
    """Return the device of that name; HeadwayError (INVALID_ARGUMENT) where there is none."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _no_device(name, "cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise _no_device(name, "cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise _no_device(name, f"one of the {torch.cuda.device_count()} GPUs of this machine")
    return device


def _no_device(name: str, limit: str) -> HeadwayError:
    message = f"device is {name!r}; it must be {limit}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param="device")
