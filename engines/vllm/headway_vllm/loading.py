"""Loads vLLM as a worker's engine: ``--engine vllm`` and ``--engine vllm-native``."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from headway.core.reasoning import Markers
from headway.engine import EngineInfo, ModelSize
from headway.errors import Code, HeadwayError, invalid
from headway_vllm.ahead import AheadBackend
from headway_vllm.backend import VllmBackend
from headway_vllm.device import device_options, require_device, require_platform, require_queue
from headway_vllm.engine_parts import EngineParts, PlanningParts
from headway_vllm.native import NativeEngine, ShownOrder
from headway_vllm.parallel import num_processes, parallel_options, require_shares, threads_of_each
from headway_vllm.plans import NULL_BLOCKS
from headway_vllm.settings import SETTING
from headway_vllm.shim import (
    engine_config,
    eos_token_ids,
    prepare_environment,
    require_version,
)
from services.runtime.reasoning import find_markers, tokenizer_file
from services.worker.config import WorkerConfig
from services.worker.engine.grammar import Grammars
from services.worker.loading import blocks_per_unit, host_blocks_per_unit

if find_spec("vllm") is None:  # it is imported later, in an environment that is prepared for it
    raise ImportError("vLLM is not installed: in a checkout, pip install -e 'engines/vllm[cpu]'")

_ROWS = 256
"""Most requests of a pass, where ``--worker.max-running`` gives none."""


_OURS = {
    "async_scheduling": "--engine vllm with --worker.async-scheduling",
    "block_size": "--engine-args '{\"block_size\": N}'",
    "enable_prefix_caching": "--worker.no-prefix-caching",
    "kv_cache_memory_bytes": "--worker.kv-cache-gib",
    "num_gpu_blocks_override": "--worker.num-blocks",
    "scheduler_cls": "--policy batching=NAME",
    "enable_lora": "a plain vLLM in Headway's order",
    "runner": "a plain vLLM in Headway's order",
}
"""Arguments of vLLM that a worker sets by itself or does not have, and what to take instead."""


class VllmArgs(BaseModel):
    """The ``--engine-args`` of this engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    block_size: int = 32
    """Tokens per KV block, as vLLM's attention wants it: on a CPU a multiple of 32."""
    untested_gpu: bool = False
    """True to let vLLM compute on a GPU, where nothing of this has ever been run."""
    vllm: dict[str, Any] = {}
    """More arguments of vLLM's ``EngineArgs``."""


def parse_args(given: dict[str, Any]) -> VllmArgs:
    """Return the arguments; HeadwayError for a wrong one."""
    try:
        args = VllmArgs(**given)
        for name in sorted(_OURS.keys() & args.vllm.keys()):
            message = f"--engine-args: vllm.{name} is not for a worker: take {_OURS[name]}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args")
        return args
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"--engine-args: {name}: {first['msg']}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args") from error


def load(config: WorkerConfig) -> VllmBackend:
    """Load the model into vLLM, reserve its KV and warm up; HeadwayError for what it refuses."""
    parts, num_blocks, num_host_blocks = load_parts(config)
    require_queue(config, keeps_tokens=parts.keeps_requests)
    kind = AheadBackend if config.async_scheduling and parts.keeps_requests else VllmBackend
    backend = kind(parts, num_blocks, num_host_blocks, tokenizer_file(config.model))
    backend.warm_up()
    return backend


def load_native(config: WorkerConfig) -> NativeEngine:
    """Load the model into a vLLM that plans in the order of the worker's batching policy."""
    parts, num_blocks = load_planning_parts(config)
    model, markers = parts.config.model_config, _markers(config)
    policies = config.policies()
    readers = replace(
        policies.worker, end_of_reasoning=markers.end, start_of_reasoning=markers.start
    )
    info = EngineInfo(
        num_blocks=num_blocks,
        num_host_blocks=0,
        block_size=parts.kv_spec.block_size,
        kv_bytes_per_token=_size(parts.config).kv_bytes_per_token * num_processes(parts.config),
        max_model_len=model.max_model_len,
        eos_token_ids=eos_token_ids(parts.config),
        dtype=str(model.dtype).removeprefix("torch."),
        kernels="vllm",
        kv_layout="",
    )
    vocab_size = int(model.get_vocab_size())
    grammars = Grammars(tokenizer_file(config.model), vocab_size, info.eos_token_ids)

    def make_order() -> ShownOrder:
        return ShownOrder(policies.make_batching(), readers)

    return NativeEngine(parts, info, make_order, grammars, vocab_size)


def load_planning_parts(config: WorkerConfig) -> tuple[PlanningParts, int]:
    """Return a loaded vLLM engine that plans, and its KV blocks."""
    if config.host_kv_gib:
        raise invalid("host_kv_gib", config.host_kv_gib, "0 with engine vllm-native")
    os.environ.pop(SETTING, None)  # of a plain vLLM; here the worker's policies order
    chosen, num_blocks, _ = _configuration(
        config,
        {
            "scheduler_cls": "headway_vllm.HeadwayScheduler",
            "enable_prefix_caching": config.prefix_caching,
        },
    )
    return PlanningParts(chosen), num_blocks


def load_parts(config: WorkerConfig) -> tuple[EngineParts, int, int]:
    """Return a loaded vLLM engine, its KV blocks, and the blocks that host memory may have."""
    chosen, num_blocks, num_host_blocks = _configuration(config, {"enable_prefix_caching": False})
    if chosen.speculative_config is not None:
        message = "--engine vllm does not take speculative_config: take --engine vllm-native"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine_args")
    chunk = config.most_pass_tokens * config.dp
    most = chosen.scheduler_config.max_num_batched_tokens
    if most < chunk:
        message = (
            f"vLLM's max_num_batched_tokens is {most}, and a pass has up to {chunk} tokens: "
            "take a smaller --worker.chunk-tokens or --worker.prefill-chunk-tokens"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args")
    parts = EngineParts(chosen)
    if parts.num_kinds != 1:
        message = (
            f"the model has {parts.num_kinds} kinds of KV; --engine vllm serves one kind: "
            "take --engine vllm-native"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="model")
    return parts, num_blocks, num_host_blocks


def load_stock(config: WorkerConfig) -> PlanningParts:
    """Return vLLM under its own scheduler and sampler, to compare with."""
    chosen, _, _ = _configuration(config, {"enable_prefix_caching": config.prefix_caching})
    return PlanningParts(chosen)


def _configuration(config: WorkerConfig, own: dict[str, Any]) -> tuple[Any, int, int]:
    """Return vLLM's configuration, the KV blocks, and the blocks that host memory may have."""
    args = parse_args(config.engine_args)
    require_device(config, untested_gpu=args.untested_gpu)
    prepare_environment()
    require_version()
    parallel = parallel_options(args.vllm, config.device)
    if config.num_threads or parallel:
        torch.set_num_threads(threads_of_each(args.vllm, config.num_threads))
    sized = config.model_copy(update={"block_size": args.block_size})
    chosen = engine_config(config.model, _options(sized, args) | parallel | own)
    require_platform(config, chosen)
    require_shares(chosen)
    size = _size(chosen)
    num_blocks = config.dp * blocks_per_unit(sized, size)
    num_host_blocks = config.dp * host_blocks_per_unit(sized, size)
    block_bytes = args.block_size * size.kv_bytes_per_token
    if not _has_windows(chosen):  # a block of those has one kind of layers alone
        chosen.cache_config.num_gpu_blocks_override = num_blocks + NULL_BLOCKS
    chosen.cache_config.kv_cache_memory_bytes = (num_blocks + 2 * NULL_BLOCKS) * block_bytes
    return chosen, num_blocks, num_host_blocks


def _markers(config: WorkerConfig) -> Markers:
    return find_markers(config.model, config.end_of_reasoning, config.start_of_reasoning)


def _options(config: WorkerConfig, args: VllmArgs) -> dict[str, Any]:
    rows = (config.max_running or _ROWS) * config.dp
    return {
        "dtype": config.dtype,
        "max_model_len": config.max_model_len or None,
        "block_size": config.block_size,
        "kv_cache_memory_bytes": 1 << 30,
        "max_num_seqs": rows,
        "max_num_batched_tokens": max(config.most_pass_tokens * config.dp, rows),
        "skip_tokenizer_init": True,
        "quantization": config.quantization or None,
        "disable_log_stats": True,
        **device_options(config),
        **args.vllm,
    }


def _has_windows(config: Any) -> bool:
    """Return whether some layers keep a window of the tokens, and others all."""
    return len(set(getattr(config.model_config.hf_text_config, "layer_types", None) or ())) > 1


def _size(config: Any) -> ModelSize:
    """Return the sizes that decide how many blocks there are."""
    model, parallel = config.model_config, config.parallel_config
    heads, dim = model.get_num_kv_heads(parallel), model.get_head_size()
    num_bytes = 2 * model.get_num_layers(parallel) * heads * dim * model.dtype.itemsize
    return ModelSize(num_bytes, model.max_model_len, None)
