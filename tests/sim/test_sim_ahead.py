"""The simulated device runs the passes of a worker that plans ahead, in the same time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import SendTokens
from headway.cost.pass_time import PassTime
from headway.forward_pass import ForwardPass, PassResult
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import Request, SamplingParams, StreamKey
from headway.sim.device import Device, Steps
from headway.sim.kernel import Kernel
from headway.sim.lengths import EOS
from headway.sim.node import Node


@dataclass(frozen=True)
class Length:
    num_output_tokens: int
    num_reasoning_tokens: int = 0
    prefix_hashes: tuple[int, ...] = ()


def request_of(stream_id: int, num_prompt: int) -> Request:
    sampling = SamplingParams(max_tokens=1000)
    prompt = (1,) * num_prompt
    return Request(str(stream_id), "m", prompt, sampling, 0.0, 0, stream_id, "g", "g:1")


def ends(runs_ahead: bool, lengths: dict[int, int], chunk: int) -> tuple[dict[int, float], int]:
    """When the last token of each leaves, and how many tokens there were."""
    kernel = Kernel()
    found: dict[int, float] = {}
    num_tokens = 0
    info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, chunk, 4, 100, 1000, 8)
    settings = WorkerSettings(runs_ahead=runs_ahead)
    core = WorkerCore(info, (EOS,), registry.make("batching", "fcfs"), settings)

    def perform(action: object) -> None:
        nonlocal num_tokens
        if isinstance(action, ForwardPass):
            device.start(action)
        elif isinstance(action, SendTokens):
            rows = zip(action.batch.stream_ids, action.batch.finish_reasons, strict=True)
            for stream_id, reason in rows:
                num_tokens += 1
                if reason is not None:
                    found[stream_id] = kernel.now

    def ended(result: PassResult, steps: Steps, num_steps: int) -> None:
        node.post(result)

    known = {StreamKey("g", n): Length(length) for n, length in lengths.items()}
    device = Device(kernel, PassTime(0.01), 512, 100, 0.0, known, ended)
    node = Node(kernel, core, perform)
    batch = UnitBatch(0, tuple(request_of(n, 6) for n in lengths))
    kernel.at(0.0, partial(node.post, Dispatch(1, (batch,))))
    kernel.run()
    assert core.num_held == 0
    return found, num_tokens


def test_running_ahead_changes_no_token_and_no_end() -> None:
    lengths = {0: 3, 1: 7, 2: 1}
    assert ends(True, lengths, 64) == ends(False, lengths, 64)


def test_a_prompt_that_is_computed_in_chunks_joins_as_it_did() -> None:
    lengths = {0: 12, 1: 2}
    assert ends(True, lengths, 5)[1] == ends(False, lengths, 5)[1] == 14
