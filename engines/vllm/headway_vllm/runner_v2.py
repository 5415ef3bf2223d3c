"""vLLM's model runner V2: the default on GPUs.

It keeps a slot for each request that it knows, in a pass or not. Drawn tokens stay on the device:
the next pass takes them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway_vllm.draws import Draw


class RunnerV2:
    """A ``headway_vllm.runners.Runner`` over ``vllm.v1.worker.gpu.model_runner``."""

    keeps_requests = True

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._drawer: _Drawer | None = None

    @property
    def most_requests(self) -> int:
        """See ``Runner``."""
        return int(self._runner.max_num_reqs)

    @property
    def kv_caches(self) -> Sequence[torch.Tensor]:
        """See ``Runner``."""
        caches: Sequence[torch.Tensor] = self._runner.kv_caches
        return caches

    @property
    def request_ids(self) -> Sequence[str]:
        """See ``Runner``."""
        state, drawer = self._runner.execute_model_state, self._drawer
        if state is not None:
            return list(state.input_batch.req_ids)
        return drawer.request_ids if drawer is not None else ()

    @property
    def last_states(self) -> torch.Tensor:
        """See ``Runner``."""
        state = self._runner.execute_model_state
        states: torch.Tensor = state.hidden_states[state.input_batch.logits_indices]
        return states

    def draw_with(self, draw: Draw) -> None:
        """See ``Runner``."""
        own = self._runner.sampler
        self._drawer = _Drawer(own.own if isinstance(own, _Drawer) else own, draw)
        self._runner.sampler = self._drawer


class _Drawer:
    """In the place of vLLM's sampler, which still keeps its state of each request."""

    def __init__(self, own: Any, draw: Draw) -> None:
        self.own = own
        self.request_ids: Sequence[str] = ()
        self._draw = draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        """Draw a token for each row; those of unfinished prompts do not count."""
        from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
        from vllm.v1.worker.gpu.sample.output import SamplerOutput

        self.request_ids = list(input_batch.req_ids)
        tokens = self._draw(logits).to(logits.device, torch.int64)
        num_sampled, num_rejected = get_num_sampled_and_rejected(
            input_batch.seq_lens.new_ones(input_batch.num_reqs),
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.own.req_states.prefill_len.gpu,
        )
        return SamplerOutput(
            sampled_token_ids=tokens.view(-1, 1),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )
