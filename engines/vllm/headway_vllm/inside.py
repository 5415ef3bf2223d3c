"""The names inside vLLM that this package leans on, and what has moved in the vLLM that is here.

vLLM's scheduler, engine and runners are no public interface. Whatever of them is not in the
arguments of a public call is named here once, with the reason; ``moved`` says in one line what
another version no longer has.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

UNTRIED = "HEADWAY_VLLM_UNTRIED"
"""Environment variable that lets another version of vLLM run: for who tries a new one."""
_SCHED = "vllm.v1.core.sched.scheduler:Scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_REQUEST = "vllm.v1.request:Request"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"
_REASONING = "vllm.config.reasoning:ReasoningConfig"
_NEW = "vllm.v1.core.sched.output:NewRequestData"
_CACHED = "vllm.v1.core.sched.output:CachedRequestData"
_CORE = "vllm.v1.engine.core:EngineCore"
_ASK = "vllm.v1.engine:EngineCoreRequest"
_EXECUTOR = "vllm.v1.executor.uniproc_executor:UniProcExecutor"
_DRAWN = "vllm.v1.outputs:SamplerOutput"
_V1 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_V2_DRAWN = "vllm.v1.worker.gpu.sample.output:SamplerOutput"


class Name(NamedTuple):
    """A name inside vLLM."""

    owner: str
    """Module and class."""
    name: str
    why: str
    """Its use here."""
    parameters: tuple[str, ...] = ()
    """Parameters that it is called with, or that it passes on."""


NAMES: Sequence[Name] = (
    Name(_SCHED, "waiting", "is replaced by a queue in the policy's order"),
    Name(_SCHED, "kv_holding_waiting", "is replaced by a queue in the policy's order"),
    Name(_SCHED, "deferred_waiting", "tells who was passed over in this step"),
    Name(_SCHED, "running", "is sorted into the policy's order"),
    Name(_SCHED, "num_waiting_for_streaming_input", "counts places that paused sessions keep"),
    Name(_SCHED, "max_num_active_reqs", "bounds the requests that run"),
    Name(_SCHED, "max_num_scheduled_tokens", "bounds the tokens of a step"),
    Name(_SCHED, "num_lookahead_tokens", "adds a draft's slots to what a request needs"),
    Name(_SCHED, "scheduler_reserve_full_isl", "says whether a whole prompt must fit"),
    Name(_SCHED, "hash_block_size", "says how many tokens a block's hash covers"),
    Name(_SCHED, "_preempt_request", "takes a request's blocks", ("request", "timestamp")),
    Name(_SCHED, "_is_blocked_waiting_status", "says who waits for a grammar", ("status",)),
    Name(_SCHED, "_request_blocks_can_be_freed", "says whose blocks may go", ("request",)),
    Name(_SCHED, "schedule", "plans a step behind the order"),
    Name(
        _SCHED,
        "update_from_output",
        "takes a step's tokens",
        ("scheduler_output", "model_runner_output"),
    ),
    Name(_SCHED, "finish_requests", "returns whom it has ended", ("request_ids",)),
    Name(_MANAGER, "coordinator", "finds cached prefixes and counts blocks"),
    Name(_MANAGER, "block_pool", "has the free blocks"),
    Name(_MANAGER, "watermark_blocks", "keeps blocks free beside those that run"),
    Name(_MANAGER, "empty_kv_cache_blocks", "is what a request without a prefix has"),
    Name(_MANAGER, "prefix_cache_lookup_enabled", "says who may use the prefix cache"),
    Name(_MANAGER, "get_blocks", "has the blocks that come free with a victim", ("request_id",)),
    Name(
        _COORDINATOR,
        "get_num_blocks_to_allocate",
        "counts the blocks that a request needs",
        (
            *("request_id", "num_tokens", "new_computed_blocks", "num_encoder_tokens"),
            *("total_computed_tokens", "num_local_computed_tokens", "num_tokens_main_model"),
            *("apply_admission_cap", "prefill_end"),
        ),
    ),
    Name(
        _COORDINATOR,
        "find_longest_cache_hit",
        "finds the cached blocks of a prompt",
        ("block_hashes", "max_cache_hit_length"),
    ),
    Name(_POOL, "get_num_free_blocks", "counts free blocks"),
    Name(_POOL, "num_gpu_blocks", "counts all blocks"),
    Name(_REQUEST, "is_prefill_chunk", "says whose prompt goes on"),
    Name(_REQUEST, "block_hashes", "names the blocks of a prompt"),
    Name(_REQUEST, "num_computed_tokens", "says how far a request is"),
    Name(_REQUEST, "priority", "is read as the class of a request"),
    Name(_OUTPUT, "scheduled_spec_decode_tokens", "has the drafts of a step"),
    Name(
        "vllm.config.parallel:ParallelConfig",
        "data_parallel_index",
        "tells ranks apart (a dense model's all have rank 0)",
    ),
    Name(_REASONING, "natural_reasoning_end_token_ids", "ends the reasoning"),
    Name(_REASONING, "reasoning_start_token_ids", "opens the reasoning"),
    *(
        Name(_OUTPUT, name, "is a part of a pass that Headway plans")
        for name in (
            *("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens"),
            *("total_num_scheduled_tokens", "scheduled_encoder_inputs", "finished_req_ids"),
            *("num_common_prefix_blocks", "free_encoder_mm_hashes"),
        )
    ),
    *(
        Name(_NEW, name, "tells vLLM of a request that it does not know")
        for name in (
            *("req_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params"),
            *("block_ids", "num_computed_tokens", "lora_request", "prefill_token_ids"),
        )
    ),
    *(
        Name(_CACHED, name, "tells vLLM of a request that it knows")
        for name in (
            *("make_empty", "req_ids", "new_block_ids", "num_computed_tokens"),
            *("num_output_tokens", "resumed_req_ids"),
        )
    ),
    Name(_CORE, "model_executor", "computes passes"),
    Name(_CORE, "scheduler", "has the kinds of KV, and is ours where vLLM plans"),
    Name(_CORE, "step_fn", "plans and runs a pass"),
    Name(_CORE, "post_step", "takes drafts for the next pass"),
    Name(_CORE, "preprocess_add_request", "prepares a request", ("request",)),
    Name(_CORE, "add_request", "takes a request in", ("request",)),
    Name(_CORE, "abort_requests", "stops requests", ("request_ids",)),
    *(
        Name(_ASK, name, "asks vLLM to serve a request")
        for name in (
            *("request_id", "prompt_token_ids", "mm_features", "sampling_params"),
            *("pooling_params", "arrival_time", "lora_request", "cache_salt"),
            "data_parallel_rank",
        )
    ),
    Name(_EXECUTOR, "driver_worker", "holds the model's runner"),
    Name(_EXECUTOR, "execute_model", "computes a pass", ("scheduler_output",)),
    Name(_EXECUTOR, "sample_tokens", "draws", ("grammar_output", "non_block")),
    Name(_EXECUTOR, "_distributed_args", "says where ranks meet"),
    Name(_EXECUTOR, "collective_rpc", "is told to every rank", ("method", "single_value")),
    Name(_DRAWN, "sampled_token_ids", "has the tokens that Headway has drawn"),
    *(
        Name(_V1, name, why)
        for name, why in (
            ("kv_caches", "holds the KV"),
            ("attn_groups", "names the attention"),
            ("input_batch", "has the order of a pass's rows"),
            ("execute_model_state", "has the last layer's states"),
            ("sampler", "is replaced by Headway's draw"),
        )
    ),
    *(
        Name(_V2, name, why)
        for name, why in (
            ("kv_caches", "holds the KV"),
            ("attn_groups", "names the attention"),
            ("req_states", "tells the runner from V1, and has lengths of prompts"),
            ("max_num_reqs", "bounds the requests that it knows"),
            ("execute_model_state", "has the order of rows and the last layer's states"),
            ("sampler", "is replaced by Headway's draw"),
        )
    ),
    Name(
        "vllm.v1.worker.gpu.input_batch",
        "get_num_sampled_and_rejected",
        "counts what a pass has drawn",
    ),
    Name(_V2_DRAWN, "sampled_token_ids", "has the tokens that Headway has drawn"),
)


def moved(name: Name) -> str:
    """Return what is no longer as this package knows it, in one line; "" if nothing is."""
    module, _, owner = name.owner.partition(":")
    said = f"{owner or module}.{name.name}, which {name.why},"
    try:
        kind = import_module(module)
        kind = getattr(kind, owner) if owner else kind
    except (ImportError, AttributeError):
        return f"{said} is gone: there is no {owner or 'such module'} in {module}"
    attribute = inspect.getattr_static(kind, name.name, None)
    if attribute is None:
        is_set = any(f"self.{name.name}" in inspect.getsource(each) for each in _ours(kind))
        is_field = name.name in getattr(kind, "__annotations__", ())
        return "" if is_set or is_field else f"{said} is gone from {module}"
    if not name.parameters:
        return ""
    known = inspect.signature(getattr(kind, name.name)).parameters
    missing = [each for each in name.parameters if each not in known]
    return f"{said} no longer takes {', '.join(missing)}" if missing else ""


def _ours(kind: Any) -> Iterator[Any]:
    """Yield a class of vLLM and its ancestors there: each may set an attribute."""
    for each in getattr(kind, "__mro__", ()):
        if each.__module__.startswith("vllm."):
            yield each
