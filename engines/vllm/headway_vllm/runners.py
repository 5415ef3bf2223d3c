"""The part of vLLM's model runner that this package needs, whichever of the two it has.

A runner keeps requests' tokens and block tables from pass to pass. V1 is the one of CPUs, V2
(``vllm.v1.worker.gpu``) the default on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from headway.errors import Code, HeadwayError
from headway_vllm.draws import Draw
from headway_vllm.runner_v1 import RunnerV1
from headway_vllm.runner_v2 import RunnerV2


class Runner(Protocol):
    """One of vLLM's model runners."""

    keeps_requests: bool
    """True if it keeps the blocks of a request that a pass leaves out, and takes one with output
    as new. Else the first is told all of its blocks again, and the second's output is prompt."""

    @property
    def most_requests(self) -> int:
        """Return how many requests it can know at a time, those of no pass included."""

    @property
    def kv_caches(self) -> Sequence[torch.Tensor]:
        """Return each layer's KV: (blocks, KV heads, tokens, keys and values)."""

    @property
    def request_ids(self) -> Sequence[str]:
        """Return the requests of the pass, in the order of its rows."""

    @property
    def last_states(self) -> torch.Tensor:
        """Return what the head is given, a row for each of ``request_ids``, before the draw."""

    def draw_with(self, draw: Draw) -> None:
        """Let ``draw`` choose the tokens of every pass from now on."""


def runner_of(executor: Any) -> tuple[Any, Runner]:
    """Return the executor's model runner, and how to speak to it.

    Raises HeadwayError (FAILED_PRECONDITION) for one that is in another process, or unknown.
    """
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    runner = getattr(worker, "model_runner", None)
    if hasattr(runner, "sampler"):
        if hasattr(runner, "req_states"):
            return runner, RunnerV2(runner)
        if hasattr(runner, "input_batch"):
            return runner, RunnerV1(runner)
    message = "headway-vllm speaks vLLM's model runners V1 and V2, in one process"
    raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine")
