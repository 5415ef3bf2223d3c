"""Requests that a worker's core and an engine serve, without a worker around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import SendTokens
from headway.core.worker.settings import WorkerSettings
from headway.engine import Backend
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import Request
from tests.fakes.vllm_rig import BLOCKS, CHUNK, SIZE

HOST_BLOCKS = 30


@dataclass
class Served:
    """Requests, as a worker's core and an engine have served them."""

    outputs: dict[int, list[int]]
    core: WorkerCore
    num_swaps: int


def serve(
    backend: Backend,
    requests: list[Request],
    policy: str = "fcfs",
    *,
    host_blocks: int = 0,
    **settings: Any,
) -> Served:
    """Serve them all, as a worker does."""
    info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, CHUNK, SIZE, BLOCKS, 512, 3072)
    chosen = WorkerSettings(
        host_tokens=host_blocks * SIZE, prefix_caching=True, watermark=0.0, **settings
    )
    core = WorkerCore(info, (), registry.make("batching", policy), chosen)
    outputs: dict[int, list[int]] = {request.stream_id: [] for request in requests}
    now, num_swaps = 10.0, 0
    actions = [*core.handle(Dispatch(1, (UnitBatch(0, tuple(requests)),)), now=now)]
    while actions:
        action = actions.pop(0)
        if isinstance(action, SendTokens):
            batch = action.batch
            for stream, token in zip(batch.stream_ids, batch.token_ids, strict=True):
                outputs[stream].append(token)
        elif isinstance(action, ForwardPass):
            num_swaps += len(action.swapped_out)
            backend.expect(action)
            result: PassResult = backend.run(action)
            now += 0.01
            # Recomputing is made to look slow where KV may go to host memory.
            slow = 0.5 if host_blocks else 0.01
            actions += core.handle(replace(result, pass_time=slow, swap_time=1e-6), now=now)
    return Served(outputs, core, num_swaps)
