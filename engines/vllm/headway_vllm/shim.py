"""Most of what this package asks of vLLM.

``engine_parts.py``, ``scheduler.py``, ``waiting.py``, ``kv.py`` and the modules of the two runners
touch more of its inside; ``inside.py`` names what the plug-in leans on. The scheduler runs in a
plain vLLM, too, where Headway's services are not on the path: nothing here imports them. Another
version is refused: what they use is not public there, and changes without notice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from pydantic import ValidationError

from headway.errors import Code, HeadwayError
from headway_vllm.inside import UNTRIED

VERSIONS = ("0.32", "0.33")
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

    version = vllm.__version__
    if ".".join(version.split(".")[:2]) not in VERSIONS and not os.environ.get(UNTRIED):
        known = " and ".join(f"{minor}.x" for minor in VERSIONS)
        message = (
            f"vLLM is {version}; this headway-vllm works with {known}: install it, "
            f"or set {UNTRIED}=1 to try"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine")


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
    ids = generation.get("eos_token_id", config.model_config.hf_config.eos_token_id)
    return tuple(ids) if isinstance(ids, list) else (int(ids),)
