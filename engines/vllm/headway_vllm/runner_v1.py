"""vLLM's model runner V1: the one of CPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from headway_vllm.draws import Draw


class RunnerV1:
    """A ``headway_vllm.runners.Runner`` over ``vllm.v1.worker.gpu_model_runner``."""

    keeps_requests = False
    most_requests = sys.maxsize

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def kv_caches(self) -> Sequence[torch.Tensor]:
        """See ``Runner``."""
        caches: Sequence[torch.Tensor] = self._runner.kv_caches
        return caches

    @property
    def request_ids(self) -> Sequence[str]:
        """See ``Runner``."""
        return list(self._runner.input_batch.req_ids)

    @property
    def last_states(self) -> torch.Tensor:
        """See ``Runner``."""
        states: torch.Tensor = self._runner.execute_model_state.sample_hidden_states
        return states

    def draw_with(self, draw: Draw) -> None:
        """See ``Runner``."""
        self._runner.sampler = _Drawer(draw)


class _Drawer(torch.nn.Module):
    """A module in the place of vLLM's sampler."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self._draw = draw

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, **_: Any) -> Any:
        from vllm.v1.outputs import SamplerOutput

        tokens = self._draw(logits).to(torch.int32)
        return SamplerOutput(tokens.unsqueeze(-1), None)
