"""A loaded vLLM engine within Headway's worker: who plans its passes, and what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway.errors import Code, HeadwayError
from headway_vllm.drafts import Check, check_with
from headway_vllm.draws import Draw
from headway_vllm.ranks import Ranks
from headway_vllm.runners import runner_of


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
