"""The worker's core over the real engine: whatever the order, and launched ahead, the same text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import SendTokens, WorkerEvent
from headway.engine import PassFailure, QueueingBackend
from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import SamplingParams, StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions
from services.worker.engine.queueing import QueueingTorchBackend
from tests.fakes.engine_rig import GREEDY, MAX_MODEL_LEN, backend, prompt, reference_output
from tests.fakes.requests import a_request

BLOCK_SIZE = 8
LENGTHS = ((40, 9), (3, 20), (70, 5), (12, 14), (1, 11), (25, 8))
PLAIN = SamplingParams(temperature=0.0)
DRAWS = {
    "greedy": PLAIN,
    "random": SamplingParams(temperature=0.9, seed=3),
    "top-p": SamplingParams(temperature=0.9, top_p=0.7, seed=4),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.3),
    "log probabilities": SamplingParams(temperature=0.0, num_logprobs=3),
    "of the prompt": SamplingParams(temperature=0.0, num_prompt_logprobs=1),
}


@cache
def queueing(folder: str) -> QueueingTorchBackend:
    options = EngineOptions(block_size=BLOCK_SIZE, num_blocks=2048 // BLOCK_SIZE)
    return QueueingTorchBackend.load(folder, options)


class Pipeline:
    """A worker's core that plans ahead; every pass is launched before a result is read.

    One that does not launch runs each pass when it is planned.
    """

    def __init__(
        self,
        engine: TorchBackend,
        *,
        launches: bool,
        batching: str = "sarathi",
        units: int = 1,
        **settings: Any,
    ) -> None:
        self.engine = engine
        self.launches = launches
        self.units = units
        info = WorkerInfo(
            worker_id="w",
            address="w:1",
            role=Role.UNIFIED,
            model="m",
            num_units=units,
            chunk_tokens=24,
            block_size=BLOCK_SIZE,
            num_blocks=40 if units == 1 else 14,
            max_model_len=MAX_MODEL_LEN,
            kv_bytes_per_token=self.engine.info.kv_bytes_per_token,
        )
        chosen = {"watermark": 0.0, "prefix_caching": False, "runs_ahead": launches, **settings}
        policy = registry.make("batching", batching)
        self.core = WorkerCore(info, (), policy, WorkerSettings(**chosen))
        self.results: deque[Callable[[], PassResult]] = deque()
        self.most_at_once = 0
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[float]] = {}
        self.now = 0.0

    def post(self, event: WorkerEvent) -> None:
        self.now += 0.01
        for action in self.core.handle(event, now=self.now):
            if isinstance(action, ForwardPass):
                self.results.append(self.begun(action))
                self.most_at_once = max(self.most_at_once, len(self.results))
            elif isinstance(action, SendTokens):
                batch = action.batch
                for n, stream_id in enumerate(batch.stream_ids):
                    self.outputs.setdefault(stream_id, []).append(batch.token_ids[n])
                    if n in batch.logprobs:
                        self.logprobs.setdefault(stream_id, []).append(batch.logprobs[n].logprob)

    def begun(self, forward_pass: ForwardPass) -> Callable[[], PassResult]:
        if self.launches:
            assert isinstance(self.engine, QueueingTorchBackend)
            return self.engine.launch(forward_pass)
        result = self.engine.run(forward_pass)
        return lambda: result

    def answer(self, samplings: list[SamplingParams]) -> None:
        for number, (length, num_tokens) in enumerate(LENGTHS):
            sampling = samplings[number % len(samplings)]
            sampling = replace(sampling, max_tokens=num_tokens, ignore_eos=True)
            request = a_request(number, prompt(length), sampling, arrival_at=self.now)
            self.post(Dispatch(number + 1, (UnitBatch(number % self.units, (request,)),)))
            if self.results and number % 2:
                self.post(self.results.popleft()())
        while self.results:
            self.post(self.results.popleft()())


def test_launched_passes_give_the_tokens_of_generate(llama: str) -> None:
    pipeline = Pipeline(queueing(llama), launches=True)
    assert isinstance(pipeline.engine, QueueingBackend)
    pipeline.answer([PLAIN])
    assert pipeline.most_at_once == 2
    for number, (length, num_tokens) in enumerate(LENGTHS):
        assert pipeline.outputs[number] == reference_output(llama, prompt(length), num_tokens)


@pytest.mark.parametrize("draws", [*DRAWS, "all of them"])
def test_launched_passes_give_what_passes_in_turn_give(llama: str, draws: str) -> None:
    samplings = [*DRAWS.values()] if draws == "all of them" else [DRAWS[draws]]
    in_turn, launched = (Pipeline(queueing(llama), launches=launches) for launches in (False, True))
    for pipeline in (in_turn, launched):
        pipeline.answer(samplings)
    assert launched.outputs == in_turn.outputs
    assert launched.logprobs.keys() == in_turn.logprobs.keys()
    for number, expected in in_turn.logprobs.items():
        assert launched.logprobs[number] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("batching", sorted(registry.REGISTRY["batching"]))
def test_every_policy_gives_the_tokens_of_generate(
    llama: str, batching: str, runs_ahead: bool
) -> None:
    """Two DP units on a tight pool, whose passes run in turn."""
    engine, chosen = backend(llama, BLOCK_SIZE), {"prefix_caching": True, "runs_ahead": runs_ahead}
    pipeline = Pipeline(engine, launches=False, batching=batching, units=2, **chosen)
    pipeline.answer([PLAIN])
    for number, (length, num_tokens) in enumerate(LENGTHS):
        assert pipeline.outputs[number] == reference_output(llama, prompt(length), num_tokens)


def test_a_token_that_the_pass_before_does_not_draw_is_refused(llama: str) -> None:
    engine = queueing(llama)
    key, stranger = StreamKey("g", 1), StreamKey("g", 2)
    first = engine.launch(
        ForwardPass(1, (PassItem(key, (5, 6), 0, (0,), True, GREEDY, (5, 6), ()),))
    )
    item = PassItem(stranger, (PENDING,), 2, (1,), True, GREEDY, (5, 6), ())
    with pytest.raises(PassFailure) as failure:
        engine.launch(ForwardPass(2, (item,)))
    assert failure.value.keys == (stranger,)
    assert len(first().sampled) == 1


def test_hidden_states_are_those_of_a_pass_in_turn(llama: str) -> None:
    key = StreamKey("g", 1)
    items = (PassItem(key, (5, 6, 7), 0, (0,), True, GREEDY, (5, 6, 7), ()),)
    forward_pass = ForwardPass(1, items, hidden=(0,))
    launched = queueing(llama).launch(forward_pass)().hidden
    in_turn = backend(llama, BLOCK_SIZE).run(forward_pass).hidden
    assert launched is not None
    assert in_turn is not None
    assert launched.keys == in_turn.keys == (key,)
    assert launched.values == pytest.approx(in_turn.values, abs=1e-3)
