"""vLLM's model runner V2 under Headway's plans: the form of a plan, slots, and who is left out.

``make test-vllm`` runs this file, and those of V1, in a process whose vLLM has V2
(``tests/fakes/triton_cpu.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore
from headway.core.worker.events import PassFailed, SendTokens
from headway.core.worker.settings import WorkerSettings
from headway.engine import PassFailure
from headway.forward_pass import PENDING, ForwardPass, PassItem, PassResult
from headway.messages import Dispatch, UnitBatch
from headway.policies import registry
from headway.request import Request, SamplingParams, StreamKey
from services.runtime.reasoning import tokenizer_file
from services.worker.engine_thread import EngineThread
from tests.fakes.vllm_rig import (
    BLOCKS,
    CHUNK,
    MODEL,
    NUM_REQUESTS,
    SIZE,
    prompt_of,
    request_of,
    stock_outputs,
    worker_config,
)

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")
if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
    pytest.skip("needs -p tests.fakes.triton_cpu: make test-vllm", allow_module_level=True)

from headway_vllm.ahead import AheadBackend
from headway_vllm.kv import HostBlocks
from headway_vllm.loading import load_parts
from headway_vllm.plans import NULL_BLOCKS, PassTranslator
from headway_vllm.runner_v2 import RunnerV2
from headway_vllm.runners import runner_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PATIENCE = 600.0
HOST_BLOCKS = 30


@dataclass
class Recorded:
    """What vLLM's own scheduler says to V2, pass by pass, and the same passes as Headway's."""

    plans: list[Any] = field(default_factory=list)
    items: list[list[PassItem]] = field(default_factory=list)

    def listen(self, scheduler: Any) -> None:
        """Record every plan of this scheduler."""
        schedule = scheduler.schedule

        def recorded(*args: Any, **kwargs: Any) -> Any:
            plan = schedule(*args, **kwargs)
            starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
            cached = plan.scheduled_cached_reqs
            starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            self.items.append(
                [
                    _item(scheduler, name, starts[name], count)
                    for name, count in plan.num_scheduled_tokens.items()
                ]
            )
            self.plans.append(deepcopy(plan))
            return plan

        scheduler.schedule = recorded


def _item(scheduler: Any, name: str, start: int, count: int) -> PassItem:
    request = scheduler.requests[name]
    tokens = tuple(request.all_token_ids)
    blocks = [n - NULL_BLOCKS for n in scheduler.kv_cache_manager.get_block_ids(name)[0]]
    prompt, stop = tuple(request.prompt_token_ids), start + count
    params = SamplingParams(temperature=0.0)
    drawn, draws = tokens[len(prompt) :], stop == len(tokens)
    return PassItem(_key(name), tokens[start:stop], start, blocks, draws, params, prompt, drawn)


def _key(name: str) -> StreamKey:
    """Return the request of a name, vLLM's or ours."""
    return StreamKey("g", int(name.split("/")[1] if "/" in name else name.partition("-")[0]))


@dataclass
class Loaded:
    """The engine, and what its own scheduler has said to it."""

    backend: AheadBackend
    recorded: Recorded
    stock: Mapping[int, list[int]]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    parts, num_blocks, _ = load_parts(worker_config(engine="vllm"))
    assert isinstance(runner_of(parts.executor)[1], RunnerV2)
    recorded = Recorded()
    recorded.listen(parts.core.scheduler)
    outputs, _ = stock_outputs(parts.core)
    backend = AheadBackend(parts, num_blocks, HOST_BLOCKS, tokenizer_file(str(MODEL)))
    backend.warm_up()
    yield Loaded(backend, recorded, outputs)
    backend.close()


def _new(plan: Any) -> Mapping[StreamKey, tuple[Any, ...]]:
    return {
        _key(new.req_id): (
            list(new.prompt_token_ids),
            list(new.prefill_token_ids),
            new.block_ids,
            new.num_computed_tokens,
        )
        for new in plan.scheduled_new_reqs
    }


def _known(plan: Any) -> Mapping[StreamKey, tuple[Any, ...]]:
    cached = plan.scheduled_cached_reqs
    assert not cached.resumed_req_ids
    assert not cached.all_token_ids
    columns = cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens
    named = zip(cached.req_ids, *columns, strict=True)
    return {_key(name): tuple(values) for name, *values in named}


def test_a_plan_has_the_form_of_one_by_vllms_own_scheduler(loaded: Loaded) -> None:
    translator, recorded = PassTranslator(keeps_requests=True), loaded.recorded
    names: dict[StreamKey, str] = {}
    gone: set[str] = set()
    num_resumed = 0
    for theirs, items in zip(recorded.plans, recorded.items, strict=True):
        translator.forget(_key(name) for name in theirs.finished_req_ids)
        if not items:
            continue
        ours, _ = translator.translate(items)
        assert _new(ours) == _new(theirs)
        assert _known(ours) == _known(theirs)
        counts = {_key(name): count for name, count in ours.num_scheduled_tokens.items()}
        assert counts == {_key(n): count for n, count in theirs.num_scheduled_tokens.items()}
        assert ours.total_num_scheduled_tokens == theirs.total_num_scheduled_tokens
        gone |= ours.finished_req_ids
        for new in ours.scheduled_new_reqs:
            key = _key(new.req_id)
            assert names.get(key) in (*gone, None)  # one that was preempted is another
            names[key] = new.req_id
            num_resumed += len(new.prefill_token_ids) > len(new.prompt_token_ids)
    assert num_resumed > 0
    assert len({key for items in recorded.items for key, *_ in items}) == NUM_REQUESTS


@pytest.mark.parametrize("keeps_requests", [False, True])
def test_one_that_begins_is_given_no_token_that_came_after_its_plan(keeps_requests: bool) -> None:
    item = Decoding(1, list(range(40, 64))).item()
    grown = item._replace(output_token_ids=[*item.output_token_ids, PENDING])
    plan, _ = PassTranslator(keeps_requests=keeps_requests).translate([grown])
    (new,) = plan.scheduled_new_reqs
    assert list(new.prefill_token_ids) == list(range(40, 64))


@dataclass
class Decoding:
    """A greedy request over blocks of its own, which grows past a block's end."""

    number: int
    tokens: list[int]
    start: int = 0

    def item(self) -> PassItem:
        params, new = SamplingParams(temperature=0.0), tuple(self.tokens[self.start :])
        first = 3 * self.number
        return PassItem(
            StreamKey("g", 100 + self.number),
            new,
            self.start,
            list(range(first, first + (len(self.tokens) + 31) // 32)),
            True,
            params,
            tuple(self.tokens[:20]),
            tuple(self.tokens[20:]),
        )


def _serve(backend: AheadBackend, rounds: Sequence[Sequence[int]]) -> Mapping[int, list[int]]:
    """Run passes with the named requests in each; return their tokens."""
    numbers = sorted({number for each in rounds for number in each})
    requests = {number: Decoding(number, list(prompt_of(number)[:20])) for number in numbers}
    for pass_id, each in enumerate(rounds, 1):
        chosen = [requests[number] for number in each]
        result = backend.run(ForwardPass(pass_id, tuple(request.item() for request in chosen)))
        for request, sampled in zip(chosen, result.sampled, strict=True):
            request.start = len(request.tokens)
            request.tokens.append(sampled.token_id)
    keys = tuple(StreamKey("g", 100 + number) for number in numbers)
    backend.run(ForwardPass(0, (), ended=keys))
    return {number: requests[number].tokens[20:] for number in numbers}


@pytest.mark.parametrize("most", [2, 100])
def test_requests_that_passes_leave_out_go_on_with_or_without_a_slot(
    loaded: Loaded, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {n: _serve(loaded.backend, [[n]] * 30)[n] for n in range(4)}
    translator = PassTranslator(keeps_requests=True, most=most)
    monkeypatch.setattr(loaded.backend, "_plans", translator)
    pairs = [[0, 1], [2, 3], [1, 2], [3, 0], [2, 0], [1, 3]] * 10
    assert _serve(loaded.backend, pairs) == alone


# --- passes behind passes -----------------------------------------------------------------


def test_a_pass_is_computed_before_anybody_has_read_the_tokens_of_the_one_before(
    loaded: Loaded,
) -> None:
    backend, numbers = loaded.backend, (1, 2)
    alone = {n: _serve(backend, [[n]] * 20)[n] for n in numbers}
    requests = {n: Decoding(n, list(prompt_of(n)[:20])) for n in numbers}
    waiting, queued = [], backend.num_queued
    for pass_id in range(1, 21):
        items = tuple(requests[n].item() for n in numbers)
        waiting.append(backend.launch(ForwardPass(pass_id, items)))
        for request in requests.values():
            request.start = len(request.tokens)
            request.tokens.append(PENDING)
    assert backend.num_queued == queued + 19
    found: dict[int, list[int]] = {n: [] for n in numbers}
    for wait in waiting:
        for number, sampled in zip(numbers, wait().sampled, strict=True):
            found[number].append(sampled.token_id)
    assert found == alone
    backend.run(ForwardPass(0, (), ended=tuple(StreamKey("g", 100 + n) for n in numbers)))


async def _serve_ahead(
    backend: AheadBackend,
    requests: Sequence[Request],
    policy: str,
    *,
    runs_ahead: bool = True,
    host_blocks: int = 0,
) -> Mapping[int, list[int]]:
    """Serve them all with the core and the threads of a worker."""
    info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, CHUNK, SIZE, BLOCKS, 512, 3072)
    settings = WorkerSettings(
        prefix_caching=True, watermark=0.0, runs_ahead=runs_ahead, host_tokens=host_blocks * SIZE
    )
    core = WorkerCore(info, (), registry.make("batching", policy), settings)
    results: asyncio.Queue[PassResult | PassFailed] = asyncio.Queue()
    thread = EngineThread(backend, results.put_nowait)
    outputs: dict[int, list[int]] = {request.stream_id: [] for request in requests}
    now = 10.0
    actions = [*core.handle(Dispatch(1, (UnitBatch(0, tuple(requests)),)), now=now)]
    num_in_flight = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while actions or num_in_flight:
                for action in actions:
                    if isinstance(action, SendTokens):
                        batch = action.batch
                        for stream, token in zip(batch.stream_ids, batch.token_ids, strict=True):
                            outputs[stream].append(token)
                    elif isinstance(action, ForwardPass):
                        thread.start(action)
                        num_in_flight += 1
                actions = []
                if num_in_flight:
                    result = await results.get()
                    assert isinstance(result, PassResult), result
                    num_in_flight -= 1
                    now += 0.01
                    # Recomputing is made to look slow where KV may go to host memory.
                    slow = 0.5 if host_blocks else 0.01
                    result = replace(result, pass_time=slow, swap_time=1e-6)
                    actions = [*core.handle(result, now=now)]
    finally:
        thread.end_passes()
    assert not core.num_held
    return outputs


@pytest.mark.parametrize("policy", ["fcfs", "uniboost", "pascal"])
async def test_passes_behind_passes_say_what_stock_vllm_says(loaded: Loaded, policy: str) -> None:
    backend, queued = loaded.backend, loaded.backend.num_queued
    requests = [request_of(number) for number in range(NUM_REQUESTS)]
    assert await _serve_ahead(backend, requests, policy) == loaded.stock
    assert backend.num_queued > queued


async def test_passes_behind_passes_go_on_over_kv_that_was_in_host_memory(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped: list[int] = []
    swap = HostBlocks.swap

    def counted(self: HostBlocks, forward_pass: ForwardPass) -> None:
        swapped.append(len(forward_pass.swapped_out))
        swap(self, forward_pass)

    monkeypatch.setattr(HostBlocks, "swap", counted)
    requests = [request_of(number) for number in range(NUM_REQUESTS)]
    found = await _serve_ahead(loaded.backend, requests, "pascal", host_blocks=HOST_BLOCKS)
    assert found == loaded.stock
    assert sum(swapped) > 0


async def test_what_reads_its_output_waits_for_it_and_what_is_drawn_at_random_does_not(
    loaded: Loaded,
) -> None:
    backend = loaded.backend
    sampled = [request_of(n, temperature=1.0, seed=n, num_logprobs=2) for n in range(4)]
    behind = await _serve_ahead(backend, sampled, "fcfs", runs_ahead=False)
    queued = backend.num_queued
    assert await _serve_ahead(backend, sampled, "fcfs") == behind
    assert backend.num_queued > queued
    penalised = [request_of(n, repetition_penalty=1.3) for n in range(4)]
    behind = await _serve_ahead(backend, penalised, "fcfs", runs_ahead=False)
    queued = backend.num_queued
    assert await _serve_ahead(backend, penalised, "fcfs") == behind
    assert backend.num_queued == queued


async def test_a_failed_pass_fails_the_one_behind_it_and_no_other(loaded: Loaded) -> None:
    backend = loaded.backend
    good, bad = Decoding(1, list(prompt_of(1)[:20])), Decoding(2, [10**6] * 20)
    with pytest.raises(PassFailure, match="not a token"):
        backend.launch(ForwardPass(1, (good.item(), bad.item())))
    for request in (good, bad):
        request.start = len(request.tokens)
        request.tokens.append(PENDING)
    with pytest.raises(PassFailure, match="not a token"):
        backend.launch(ForwardPass(2, (good.item(),)))
    assert _serve(backend, [[1]] * 3)[1] == _serve(backend, [[1]] * 30)[1][:3]
