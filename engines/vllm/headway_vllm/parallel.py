"""The ways of vLLM to share a model between processes that a worker takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError, invalid

_EXECUTOR = "headway_vllm.ranked.LeadingExecutor"
_OTHER_WAYS = (
    *("pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size"),
    *("prefill_context_parallel_size", "nnodes"),
)


def parallel_options(given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return what vLLM needs for the processes that its own arguments ask for.

    Raises HeadwayError for another way than tensor parallelism on one machine's CPU.
    """
    for name in _OTHER_WAYS:
        if given.get(name, 1) != 1:
            raise invalid(name, given[name], "1: a worker shares the heads alone")
    size = given.get("tensor_parallel_size", 1)
    if not isinstance(size, int) or size < 1:
        raise invalid("tensor_parallel_size", size, "a number of processes, at least 1")
    if size == 1:
        return {}
    if device != "cpu":
        raise invalid("tensor_parallel_size", size, f"1 with device {device}: not built for GPUs")
    name = "distributed_executor_backend"
    if given.get(name) is not None:
        raise invalid(name, given[name], "left out: the worker starts its processes itself")
    return {name: _EXECUTOR}


def threads_of_each(given: Mapping[str, Any], num_threads: int) -> int:
    """Return the threads of each process; ``num_threads``: of the worker, 0 for all its cores."""
    size: int = given.get("tensor_parallel_size", 1)
    return max(1, (num_threads or len(os.sched_getaffinity(0))) // size)


def num_processes(config: Any) -> int:
    """Return the processes of a worker, by vLLM's configuration."""
    size: int = config.parallel_config.tensor_parallel_size
    return size


def require_shares(config: Any) -> None:
    """Raise HeadwayError for a model that several processes cannot share evenly."""
    size = num_processes(config)
    if size == 1:
        return
    heads = config.model_config.get_total_num_kv_heads()
    if config.model_config.use_mla or heads % size:
        limit = f"1, or a divisor of the model's KV heads, {heads}"
        if config.model_config.use_mla:
            limit = "1 for a model without KV heads of its own (MLA)"
        raise invalid("tensor_parallel_size", size, limit)
    problem = ""
    if config.speculative_config is not None:
        problem = "speculation is for one process: leave one out"
    elif config.use_v2_model_runner:
        problem = "vLLM has chosen its model runner V2: set VLLM_USE_V2_MODEL_RUNNER=0"
    if problem:
        message = f"tensor_parallel_size is {size}; {problem}"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine_args")
