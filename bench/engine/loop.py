"""The worker's core and its backend in one loop, without a network."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import torch

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import SendTokens, WorkerEvent
from headway.engine import Backend, EngineInfo
from headway.forward_pass import ForwardPass
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import Request, SamplingParams
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions

BLOCK_SIZE = 16
CHUNK_TOKENS = 2048


def torch_backend(
    model: str,
    dtype: str,
    num_threads: int,
    concurrency: int,
    max_model_len: int,
    *,
    deterministic: bool = False,
) -> TorchBackend:
    """Return Headway's own engine, warm, with KV for ``concurrency`` of the longest requests."""
    options = EngineOptions(
        concurrency * max_model_len // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        device="cpu",
        dtype=dtype,
        deterministic=deterministic,
        num_threads=num_threads,
    )
    backend = TorchBackend.load(model, options)
    backend.warm_up()
    return backend


def worker_of(engine: EngineInfo, chunk_tokens: int) -> WorkerInfo:
    """Return a unified worker of one DP unit with an engine of this size."""
    return WorkerInfo(
        worker_id="w",
        address="w:1",
        role=Role.UNIFIED,
        model="m",
        num_units=1,
        chunk_tokens=chunk_tokens,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        max_model_len=engine.max_model_len,
        kv_bytes_per_token=engine.kv_bytes_per_token,
    )


def greedy(prompts: Sequence[Sequence[int]], num_tokens: int, first: int) -> Dispatch:
    """Return a dispatch of requests, numbered from ``first``, that have so many tokens each."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    requests = tuple(
        Request(
            request_id=str(number),
            stream_id=number,
            gateway_id="g",
            gateway_address="g:1",
            model="m",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            arrival_at=time.time(),
        )
        for number, prompt in enumerate(prompts, first)
    )
    return Dispatch(first + 1, (UnitBatch(0, requests),))


class EngineLoop:
    """A worker of one DP unit with ``sarathi``; requests go in and tokens come out."""

    def __init__(self, backend: Backend) -> None:
        """``backend``: a warm one."""
        self.backend = backend
        info = worker_of(backend.info, CHUNK_TOKENS)
        policy = registry.make("batching", "sarathi")
        self._core = WorkerCore(info, (), policy, WorkerSettings(watermark=0.0))
        self._num_seen = 0

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Return greedy continuations of ``num_tokens`` each."""
        first = self._num_seen
        self._num_seen += len(prompts)
        outputs: dict[int, list[int]] = {first + n: [] for n in range(len(prompts))}
        passes: deque[ForwardPass] = deque()
        self._post(greedy(prompts, num_tokens, first), passes, outputs)
        with torch.inference_mode():
            while passes:
                self._post(self.backend.run(passes.popleft()), passes, outputs)
        return list(outputs.values())

    def _post(
        self, event: WorkerEvent, passes: deque[ForwardPass], outputs: dict[int, list[int]]
    ) -> None:
        for action in self._core.handle(event, now=time.time()):
            if isinstance(action, ForwardPass):
                passes.append(action)
            elif isinstance(action, SendTokens):
                batch = action.batch
                for stream_id, token in zip(batch.stream_ids, batch.token_ids, strict=True):
                    outputs[stream_id].append(token)
