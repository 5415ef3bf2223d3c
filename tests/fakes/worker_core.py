"""A worker's core with a fake engine, and requests for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.cluster import Adapter, Role, UnitLoad, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.room import Preemptions
from headway.core.worker.unit import PrefixCounts
from headway.cost.costs import Constant
from headway.forward_pass import ForwardPass
from headway.messages import Dispatch, EndForward, MeasuredCosts, UnitBatch
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.sarathi import Sarathi
from headway.request import Request, SamplingParams
from tests.fakes.paged import EOS, WorkerHarness
from tests.fakes.requests import a_request


def make_worker(
    role: Role = Role.UNIFIED,
    *,
    blocks: int = 32,
    block_size: int = 4,
    chunk: int = 16,
    units: int = 1,
    batching: Batching | None = None,
    adapters: tuple[Adapter, ...] = (),
    own_chunks: tuple[int, int] = (0, 0),
    **settings: Any,
) -> WorkerHarness:
    info = WorkerInfo(
        *("w", "w:1", role, "m", units, chunk, block_size, blocks, 1000, 8),
        adapters=adapters,
        prefill_chunk_tokens=own_chunks[0],
        convertible_chunk_tokens=own_chunks[1],
    )
    core = WorkerCore(
        info, [EOS], batching or Sarathi(), WorkerSettings(**{"move_rounds": 0, **settings})
    )
    return WorkerHarness(core, block_size)


def make_request(
    stream_id: int, prompt: int = 6, *, max_tokens: int = 5, gateway_id: str = "g", **sampling: Any
) -> Request:
    tokens = range(stream_id + 1, stream_id + 1 + prompt)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, **sampling)
    return a_request(stream_id, tokens, params, gateway_id=gateway_id)


def dispatch(*requests: Request, dispatch_id: int = 1, unit: int = 0) -> Dispatch:
    return Dispatch(dispatch_id, (UnitBatch(unit, requests),))


def output_of(worker: WorkerHarness, stream_id: int) -> list[int]:
    stream = worker.tokens[stream_id]
    return [stream[i] for i in sorted(stream)]


def reports(worker: WorkerHarness) -> list[EndForward]:
    return [a for a in worker.log if isinstance(a, EndForward)]


def crowded(host_tokens: int) -> WorkerHarness:
    """Two requests that grow beyond 8 blocks of 4 tokens together."""
    worker = make_worker(blocks=8, batching=Fcfs(), watermark=0.0, host_tokens=host_tokens)
    worker.post(dispatch(make_request(1, 8, max_tokens=14), make_request(2, 8, max_tokens=14)))
    return worker


def num_swapped(worker: WorkerHarness) -> tuple[int, int]:
    passes = [a for a in worker.log if isinstance(a, ForwardPass)]
    return sum(len(p.swapped_out) for p in passes), sum(len(p.swapped_in) for p in passes)


@dataclass
class CoreTotals:
    """Totals of a worker's core, for its metrics."""

    preemptions: Preemptions = field(default_factory=Preemptions)
    num_requests: tuple[tuple[int, int], ...] = ()
    adapters: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    prefix_counts: PrefixCounts = field(default_factory=PrefixCounts)
    constants: tuple[Constant, ...] = ()
    measured_costs: MeasuredCosts | None = None
    loads: tuple[UnitLoad, ...] = ()
