"""Every batching policy plans passes of the real engine: whatever the order, the same text."""

from __future__ import annotations

from collections import deque

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import SendTokens, WorkerAction, WorkerEvent
from headway.forward_pass import ForwardPass
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import SamplingParams
from tests.fakes.engine_rig import (
    MAX_MODEL_LEN,
    backend,
    prompt,
    reference_output,
)
from tests.fakes.requests import a_request

BLOCK_SIZE = 8
LENGTHS = ((40, 9), (3, 20), (70, 5), (12, 14), (1, 11), (25, 8))


class Live:
    """A worker's core and the real engine, in one loop; two DP units on a tight pool."""

    def __init__(self, folder: str, batching: str, runs_ahead: bool) -> None:
        self.engine = backend(folder, BLOCK_SIZE)
        info = WorkerInfo(
            worker_id="w",
            address="w:1",
            role=Role.UNIFIED,
            model="m",
            num_units=2,
            chunk_tokens=24,
            block_size=BLOCK_SIZE,
            num_blocks=14,
            max_model_len=MAX_MODEL_LEN,
            kv_bytes_per_token=self.engine.info.kv_bytes_per_token,
        )
        settings = WorkerSettings(watermark=0.0, prefix_caching=True, runs_ahead=runs_ahead)
        self.core = WorkerCore(info, (), registry.make("batching", batching), settings)
        self.passes: deque[ForwardPass] = deque()
        self.outputs: dict[int, list[int]] = {}
        self.now = 0.0

    def post(self, event: WorkerEvent) -> None:
        self.now += 0.01
        for action in self.core.handle(event, now=self.now):
            self.take(action)

    def take(self, action: WorkerAction) -> None:
        if isinstance(action, ForwardPass):
            self.passes.append(action)
        elif isinstance(action, SendTokens):
            batch = action.batch
            for stream_id, token in zip(batch.stream_ids, batch.token_ids, strict=True):
                self.outputs.setdefault(stream_id, []).append(token)

    def finish(self) -> None:
        while self.passes:
            self.post(self.engine.run(self.passes.popleft()))


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("batching", sorted(registry.REGISTRY["batching"]))
def test_every_policy_gives_the_tokens_of_generate(
    llama: str, batching: str, runs_ahead: bool
) -> None:
    live = Live(llama, batching, runs_ahead)
    for name, (length, num_tokens) in enumerate(LENGTHS):
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        request = a_request(name, prompt(length), sampling, arrival_at=live.now)
        live.post(Dispatch(name + 1, (UnitBatch(name % 2, (request,)),)))
        if live.passes and name % 2:
            live.post(live.engine.run(live.passes.popleft()))
    live.finish()
    for name, (length, num_tokens) in enumerate(LENGTHS):
        assert live.outputs[name] == reference_output(llama, prompt(length), num_tokens)
