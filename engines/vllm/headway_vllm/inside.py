"""The names inside vLLM that the plug-in leans on, and what has moved in the vLLM that is here.

vLLM's scheduler is no public interface. Whatever of it is not in the arguments of a public call is
named here once, with the reason; ``moved`` says in one line what another version no longer has.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

UNTRIED = "HEADWAY_VLLM_UNTRIED"
"""Environment variable that lets another version of vLLM run: for who tries a new one."""
_SCHED = "vllm.v1.core.sched.scheduler:Scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_REQUEST = "vllm.v1.request:Request"
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput"
_REASONING = "vllm.config.reasoning:ReasoningConfig"


class Name(NamedTuple):
    """A name inside vLLM."""

    owner: str
    """Module and class."""
    name: str
    why: str
    """The plug-in's use of it."""
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
    Name(_REASONING, "natural_reasoning_end_token_ids", "ends the reasoning"),
    Name(_REASONING, "reasoning_start_token_ids", "opens the reasoning"),
)


def moved(name: Name) -> str:
    """Return what is no longer as the plug-in knows it, in one line; "" if nothing is."""
    module, _, owner = name.owner.partition(":")
    said = f"{owner}.{name.name}, which {name.why},"
    try:
        kind = getattr(import_module(module), owner)
    except (ImportError, AttributeError):
        return f"{said} is gone: there is no {owner} in {module}"
    found = inspect.getattr_static(kind, name.name, None)
    if found is None:
        is_set = f"self.{name.name}" in inspect.getsource(kind)
        is_field = name.name in getattr(kind, "__dataclass_fields__", ())
        return "" if is_set or is_field else f"{said} is gone from {module}"
    if not name.parameters:
        return ""
    known = inspect.signature(getattr(kind, name.name)).parameters
    missing = [each for each in name.parameters if each not in known]
    return f"{said} no longer takes {', '.join(missing)}" if missing else ""
