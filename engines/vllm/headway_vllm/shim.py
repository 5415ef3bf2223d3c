"""Most of what this package touches of vLLM's inside, for two minor versions.

``scheduler.py``, ``waiting.py``, ``kv.py`` and the modules of the two runners touch the rest.
Another version is refused: what they use is not public there, and changes without notice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from pydantic import ValidationError

from headway.errors import Code, HeadwayError
from headway_vllm.drafts import Check, check_with
from headway_vllm.ranks import Ranks
from headway_vllm.runners import Draw, runner_of

VERSIONS = ("0.31", "0.32")
"""The minor versions that this package is written for and tested with."""


def prepare_environment() -> None:
    """Set what vLLM reads when it is imported; settings of the user stand."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)


def settle_threads() -> None:
    """Give the calling thread as many OpenMP threads as torch has.

    A thread begins with the processor's number until torch computes in it. vLLM's attention on a
    CPU plans before that and computes after it, and fails where the numbers differ.
    """
    torch.set_num_threads(torch.get_num_threads())


def require_version() -> None:
    """Raise HeadwayError (FAILED_PRECONDITION) for another minor version of vLLM."""
    import vllm

    found = vllm.__version__
    if ".".join(found.split(".")[:2]) not in VERSIONS:
        known = " and ".join(f"{minor}.x" for minor in VERSIONS)
        message = f"vLLM is {found}; this headway-vllm works with {known}: install one of them"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine")


class EngineParts:
    """A loaded vLLM engine: its executor, runner and KV, for passes that others plan."""

    def __init__(self, config: Any) -> None:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        self.config = config
        try:
            self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        except ValueError as error:  # its KV is too small, a file cannot be read
            message = f"vLLM cannot serve the model so: {error}"
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine_args") from error
        self.executor: Any = self.core.model_executor
        self.ranks: Ranks | None = getattr(self.executor, "ranks", None)
        """The other processes of the worker, if there are any."""
        self.runner, self._adapter = runner_of(self.executor)
        self._output: Any = None  # vLLM copies from it until the next pass
        groups = self.core.scheduler.kv_cache_config.kv_cache_groups
        self.num_kinds = len(groups)
        """Kinds of KV: more than one where some layers keep a window alone."""
        self.layer_names: Sequence[str] = groups[0].layer_names
        self.kv_spec: Any = groups[0].kv_cache_spec

    @property
    def kv_caches(self) -> Sequence[torch.Tensor]:
        """See ``Runner``."""
        return self._adapter.kv_caches

    @property
    def attention(self) -> str:
        """Return the name of vLLM's attention, which decides how a block of KV lies."""
        return attention_of(self.runner)

    @property
    def keeps_requests(self) -> bool:
        """See ``Runner``."""
        return self._adapter.keeps_requests

    @property
    def most_requests(self) -> int:
        """See ``Runner``."""
        return self._adapter.most_requests

    @property
    def request_ids(self) -> Sequence[str]:
        """See ``Runner``."""
        return self._adapter.request_ids

    @property
    def last_states(self) -> torch.Tensor:
        """See ``Runner``."""
        return self._adapter.last_states

    def draw_with(self, draw: Draw) -> None:
        """See ``Runner``."""
        self._adapter.draw_with(draw if self.ranks is None else self.ranks.shared(draw))

    def run(self, plan: Any) -> Any:
        """Compute a plan; return the result if nothing is left to draw, else None."""
        return self.executor.execute_model(plan)

    def sample(self) -> None:
        """Draw the tokens of the plan that ``run`` has computed; a GPU may still be at it."""
        self._output = self.executor.sample_tokens(None, non_block=self.keeps_requests)
        if self.keeps_requests and self._output.done():
            self._output.result()  # or its exception

    def close(self) -> None:
        """Shut vLLM down."""
        self.core.shutdown()


def attention_of(runner: Any) -> str:
    """Return the name of a runner's attention, which decides how a block of KV lies."""
    return str(runner.attn_groups[0][0].backend.get_name())


class PlanningParts(EngineParts):
    """A loaded vLLM engine that plans, under a scheduler of this package (``scheduler.py``)."""

    def follow(self, order: Any) -> None:
        """Let this order rank the requests, before the first one."""
        self.core.scheduler.follow(order)

    @property
    def has_requests(self) -> bool:
        """True if a step has something to do."""
        return bool(self.core.scheduler.has_requests())

    def check_with(self, check: Check) -> None:
        """Let ``check`` choose the tokens of passes with drafts, if this engine speculates."""
        if self.config.speculative_config is not None:
            check_with(self.runner, check)

    def add(
        self, name: str, tokens: Sequence[int], max_tokens: int, stops: Sequence[int], salt: str
    ) -> None:
        """Add a request that ends with one of the ``stops`` or after ``max_tokens``."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, stop_token_ids=list(stops), ignore_eos=True
        )
        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=list(tokens),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=salt or None,
            data_parallel_rank=None,
        )
        self.core.add_request(*self.core.preprocess_add_request(request))

    def abort(self, name: str) -> None:
        """Stop a request."""
        self.core.abort_requests([name])

    def draws(self, name: str) -> bool:
        """Return whether the pass under way computes the last token of a request."""
        return not self.core.scheduler.requests[name].is_prefill_chunk

    def step(self) -> Sequence[Any] | None:
        """Plan and run a pass; return vLLM's outputs, None if nothing was computed."""
        outputs, has_run = self.core.step_fn()
        self.core.post_step(has_run)
        if not has_run:
            return None
        return [out for each in (outputs or {}).values() for out in each.outputs]


def finish_reason(output: Any) -> str:
    """Return why vLLM ended a request: "stop", "length", another word, or "" if it continues."""
    return "" if output.finish_reason is None else str(output.finish_reason)


class PlanBuilder:
    """One pass as vLLM's ``SchedulerOutput``, request by request."""

    def __init__(self) -> None:
        from vllm.v1.core.sched.output import CachedRequestData

        self._new: list[Any] = []
        self._cached = CachedRequestData.make_empty()
        self._counts: dict[str, int] = {}

    def begin(
        self,
        name: str,
        prompt: list[int],
        tokens: list[int],
        block_ids: list[int],
        num_computed: int,
        count: int,
    ) -> None:
        """Add a request that vLLM does not know; ``tokens``: its prompt and its output so far."""
        from vllm.v1.core.sched.output import NewRequestData

        self._new.append(
            NewRequestData(
                req_id=name,
                prompt_token_ids=prompt,
                mm_features=[],
                sampling_params=_greedy(),
                pooling_params=None,
                block_ids=(block_ids,),
                num_computed_tokens=num_computed,
                lora_request=None,
                prefill_token_ids=tokens,
            )
        )
        self._counts[name] = count

    def go_on(
        self, name: str, new_blocks: list[int], num_computed: int, num_outputs: int, count: int
    ) -> None:
        """Add a request that vLLM knows, with the blocks that it has got since."""
        cached = self._cached
        cached.req_ids.append(name)
        cached.new_block_ids.append((new_blocks,) if new_blocks else None)
        cached.num_computed_tokens.append(num_computed)
        cached.num_output_tokens.append(num_outputs)
        self._counts[name] = count

    def resume(
        self, name: str, block_ids: list[int], num_computed: int, num_outputs: int, count: int
    ) -> None:
        """Add a request that vLLM knows and that was in no pass for a while."""
        self._cached.resumed_req_ids.add(name)
        self.go_on(name, block_ids, num_computed, num_outputs, count)

    def build(self, finished: set[str]) -> Any:
        """Return the plan; vLLM forgets the ``finished``."""
        from vllm.v1.core.sched.output import SchedulerOutput

        return SchedulerOutput(
            scheduled_new_reqs=self._new,
            scheduled_cached_reqs=self._cached,
            num_scheduled_tokens=self._counts,
            total_num_scheduled_tokens=sum(self._counts.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=finished,
            free_encoder_mm_hashes=[],
        )


@cache
def _greedy() -> Any:
    """Return the parameters of every request of a plan: vLLM draws none."""
    from vllm.sampling_params import SamplingParams

    return SamplingParams(temperature=0.0)


def engine_config(model: str, options: Mapping[str, Any]) -> Any:
    """Return vLLM's configuration of a model; HeadwayError for what it refuses."""
    from vllm.engine.arg_utils import EngineArgs

    try:
        return EngineArgs(model=model, **options).create_engine_config()
    except Exception as error:  # what its options may hold is checked in many places
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        message = f"vLLM refuses the model or its options: {said}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args") from error


def eos_token_ids(config: Any) -> tuple[int, ...]:
    """Return the tokens that end an output."""
    generation = config.model_config.try_get_generation_config()
    found = generation.get("eos_token_id", config.model_config.hf_config.eos_token_id)
    return tuple(found) if isinstance(found, list) else (int(found),)
