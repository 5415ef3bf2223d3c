"""A plain vLLM in this process, under its own scheduler or under Headway's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.fakes.vllm_rig import CHUNK, SIZE, Steps

GRAMMAR_PATIENCE = 120.0


@dataclass(frozen=True)
class Ask:
    """A request of a plain vLLM."""

    prompt: Mapping[str, Any]
    sampling: Mapping[str, Any]
    adapter: Any = None


@dataclass(frozen=True)
class Told:
    """The answers in the order of their questions, and the tokens of each in each step."""

    outputs: list[tuple[int, ...]]
    steps: Steps
    num_preempted: int


class PlainVllm:
    """``vllm.LLM`` with a pool of ``blocks`` blocks, whose scheduler can be exchanged."""

    def __init__(self, model: str, blocks: int, **options: Any) -> None:
        from headway_vllm.shim import prepare_environment

        # One thread that nobody binds: two on busy cores wait for each other at every operator.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        torch.set_num_threads(1)
        prepare_environment()
        make_way()
        import vllm

        self._llm = vllm.LLM(
            model=model,
            num_gpu_blocks_override=blocks + 1,
            **{
                "dtype": "float32",
                "block_size": SIZE,
                "enforce_eager": True,
                "max_model_len": 512,
                "max_num_batched_tokens": CHUNK,
                "max_num_seqs": 16,
                "kv_cache_memory_bytes": 1 << 28,
                "async_scheduling": False,
                **options,
            },
        )
        self.core: Any = self._llm.llm_engine.engine_core.engine_core

    @property
    def num_kinds(self) -> int:
        """Kinds of KV that the model has."""
        return len(self.core.scheduler.kv_cache_config.kv_cache_groups)

    def ordered(self, policy: str) -> Any:
        """Return a scheduler for this engine in a policy's order."""
        from headway_vllm import HeadwayScheduler
        from headway_vllm.settings import SETTING

        os.environ[SETTING] = json.dumps({"batching": policy})
        try:
            return self.stock(HeadwayScheduler)
        finally:
            del os.environ[SETTING]

    def stock(self, kind: Any = None) -> Any:
        """Return a new scheduler of this kind, or of vLLM's own, with nothing in its cache."""
        from vllm.v1.core.sched.scheduler import Scheduler

        own = self.core.scheduler
        return (kind or Scheduler)(
            vllm_config=self.core.vllm_config,
            kv_cache_config=own.kv_cache_config,
            structured_output_manager=self.core.structured_output_manager,
            block_size=own.block_size,
            hash_block_size=own.hash_block_size,
            log_stats=False,
        )

    def ask(self, scheduler: Any, asks: Sequence[Ask]) -> Told:
        """Serve the requests, all there at the beginning, under this scheduler."""
        import vllm

        self.core.scheduler = scheduler
        steps: Steps = []
        names: dict[str, str] = {}
        lost: list[str] = []
        plan, take, lose = scheduler.schedule, scheduler.add_request, scheduler._preempt_request

        def add_request(request: Any) -> None:
            names[request.request_id] = str(len(names))
            _await_grammar(request)
            take(request)

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = plan(*args, **kwargs)
            counts = output.num_scheduled_tokens
            steps.append({names[name]: count for name, count in counts.items()})
            return output

        def preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            lost.append(request.request_id)
            lose(request, *args, **kwargs)

        scheduler.schedule, scheduler.add_request = schedule, add_request
        scheduler._preempt_request = preempt
        answers = self._llm.generate(
            [ask.prompt for ask in asks],
            [vllm.SamplingParams(temperature=0.0, **ask.sampling) for ask in asks],
            lora_request=[ask.adapter for ask in asks],
            use_tqdm=False,
        )
        outputs = [tuple(answer.outputs[0].token_ids) for answer in answers]
        return Told(outputs, steps, len(lost))

    def close(self) -> None:
        """Shut vLLM down."""
        self.core.shutdown()
        make_way()


def make_way() -> None:
    """Let this process load vLLM again after an engine that has looked drafts up.

    vLLM looks into every module when an engine is made, and fails at one that its drafts load.
    """
    sys.modules.pop("llvmlite.binding.ffi", None)


def _await_grammar(request: Any) -> None:
    """Wait until a request's grammar is there, so that steps do not depend on when it comes."""
    grammar, deadline = request.structured_output_request, time.monotonic() + GRAMMAR_PATIENCE
    while grammar is not None and not grammar.is_grammar_ready:
        assert time.monotonic() < deadline, "a grammar is not there"
        time.sleep(0.005)
