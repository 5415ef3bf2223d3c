"""The device that vLLM computes on: a CPU, or at one's own risk a GPU.

Nothing of this package has been run on a GPU. What stands between the two is here.
"""

from __future__ import annotations

from typing import Any

from headway.errors import Code, HeadwayError
from services.runtime.logs import get_logger
from services.worker.config import WorkerConfig


def require_device(config: WorkerConfig, *, untested_gpu: bool) -> None:
    """Raise HeadwayError for a device that vLLM may not compute on here."""
    device = config.device
    if device == "cpu":
        return
    problem = ""
    if not untested_gpu:
        problem = (
            "headway-vllm has run on CPUs alone: take --engine openai, or try it with "
            """--engine-args '{"untested_gpu": true}'"""
        )
    elif device != "cuda":
        problem = "vLLM takes the first GPU that it sees: set CUDA_VISIBLE_DEVICES, and device cuda"
    elif not config.num_blocks and not config.kv_cache_gib:
        problem = "vLLM's KV needs a size there: give kv_cache_gib or num_blocks"
    if problem:
        message = f"device is {device!r}; {problem}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="device")
    get_logger().warning(
        "untested_gpu",
        says="headway-vllm has never run on a GPU: neither its answers nor its speed are known",
    )


def device_options(config: WorkerConfig) -> dict[str, Any]:
    """Return vLLM's options that depend on the device."""
    is_cpu = config.device == "cpu"
    # vLLM keeps as many of its buffers as passes may be queued.
    return {"enforce_eager": is_cpu, "async_scheduling": config.async_scheduling and not is_cpu}


def require_platform(config: WorkerConfig, chosen: Any) -> None:
    """Raise HeadwayError if vLLM was built for another device than the worker's."""
    platform = str(chosen.device_config.device_type)
    if platform != config.device:
        message = (
            f"device is {config.device!r}; the vLLM that is installed computes on {platform!r}"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="device")


def require_queue(config: WorkerConfig, *, keeps_tokens: bool) -> None:
    """Raise HeadwayError for passes planned ahead on a GPU whose runner does not keep tokens."""
    if config.async_scheduling and config.device != "cpu" and not keeps_tokens:
        message = "async_scheduling on a GPU needs vLLM's model runner V2: leave it out"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="async_scheduling")
