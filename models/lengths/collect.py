"""Runs a model over prompts as a worker would, and keeps hidden states and true lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from headway.cluster import Role, WorkerInfo
from headway.core.predictor.samples import RequestEnded
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import (
    AskPredictor,
    LeaderConnected,
    PredictorKnown,
    WorkerAction,
)
from headway.engine import Backend
from headway.forward_pass import ForwardPass
from headway.messages import Dispatch, EndForward, UnitBatch, WantedReports
from headway.policies.batching.sarathi import Sarathi
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from models.lengths.samples import Collected, SampledRequest

GATEWAY = "collect"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and how to draw what follows."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """``every``: k, tokens between samples of a request. ``num_running``: requests at a time."""

    every: int = 20
    num_running: int = 64
    chunk_tokens: int = 1024


class _Asking(Sarathi):
    """Prompts in chunks beside decoding; lengths are asked for every few tokens, and not read."""

    reads_lengths = True


class Collector:
    """A worker's core and its backend, driven in step."""

    def __init__(self, backend: Backend, settings: CollectSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._buffer: dict[StreamKey, list[tuple[int, NDArray[np.float16]]]] = {}
        self._ended: dict[StreamKey, RequestEnded] = {}
        info = WorkerInfo(
            worker_id=GATEWAY,
            address=GATEWAY,
            role=Role.UNIFIED,
            model=GATEWAY,
            num_units=1,
            chunk_tokens=settings.chunk_tokens,
            block_size=backend.info.block_size,
            num_blocks=backend.info.num_blocks,
            max_model_len=backend.info.max_model_len,
            kv_bytes_per_token=backend.info.kv_bytes_per_token,
        )
        self._core = WorkerCore(
            info,
            backend.info.eos_token_ids,
            _Asking(),
            WorkerSettings(
                report_interval=inf,
                max_running=settings.num_running,
                predict_every=settings.every,
            ),
        )
        self._core.handle(LeaderConnected(WantedReports(lengths=True)), now=0.0)
        self._core.handle(PredictorKnown(True), now=0.0)

    def run(self, prompts: Sequence[Prompt], ended: Callable[[int], None]) -> Collected:
        """Return every prompt's samples; call ``ended`` with the number of requests that ended.

        Requests that do not end by themselves (the longest length, errors) are left out.
        """
        requests = tuple(_request(number, prompt) for number, prompt in enumerate(prompts))
        waiting: list[WorkerAction] = []
        waiting += self._core.handle(Dispatch(1, (UnitBatch(0, requests),)), now=time.monotonic())
        while waiting:
            action = waiting.pop(0)
            if isinstance(action, ForwardPass):
                result = self._backend.run(action)
                waiting += self._core.handle(result, now=time.monotonic())
            elif isinstance(action, AskPredictor):
                self._keep(action)
            elif isinstance(action, EndForward) and action.finished:
                for one in action.finished:
                    self._ended[one.key] = RequestEnded(
                        one.key, one.num_output_tokens, one.finish_reason
                    )
                ended(len(self._ended))
        return self._collected(prompts)

    def _keep(self, asked: AskPredictor) -> None:
        for place, key in enumerate(asked.hidden.keys):
            row = asked.hidden.values[place].copy()
            self._buffer.setdefault(key, []).append((asked.num_output_tokens[place], row))

    def _collected(self, prompts: Sequence[Prompt]) -> Collected:
        whole = [
            key
            for key, ended in sorted(self._ended.items())
            if ended.finish_reason is FinishReason.STOP and key in self._buffer
        ]
        rows = [
            (owner, at, self._ended[key].num_output_tokens - at, row)
            for owner, key in enumerate(whole)
            for at, row in self._buffer[key]
        ]
        return Collected(
            tuple(
                SampledRequest(
                    prompts[key.stream_id].token_ids,
                    prompts[key.stream_id].sampling,
                    self._ended[key].num_output_tokens,
                )
                for key in whole
            ),
            hidden=np.stack([row for *_, row in rows]),
            owners=np.array([owner for owner, *_ in rows], dtype=np.int64),
            num_output_tokens=np.array([at for _, at, *_ in rows], dtype=np.int64),
            remaining=np.array([left for _, _, left, _ in rows], dtype=np.float32),
        )


def _request(number: int, prompt: Prompt) -> Request:
    return Request(
        request_id=str(number),
        attempt=0,
        stream_id=number,
        gateway_id=GATEWAY,
        gateway_address=GATEWAY,
        model=GATEWAY,
        prompt_token_ids=prompt.token_ids,
        sampling=prompt.sampling,
        arrival_at=float(number),
    )
