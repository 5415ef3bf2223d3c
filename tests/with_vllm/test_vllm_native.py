"""vLLM that plans inside a worker, in a policy's order: the same tokens, and true plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass, PassItem
from headway.policies import registry
from headway.request import Constraints, FinishReason, StreamKey
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions
from tests.fakes.followed import Followed
from tests.fakes.vllm_rig import (
    BLOCKS,
    MODEL,
    NUM_REQUESTS,
    SIZE,
    prompt_of,
    request_of,
    stock_outputs,
    worker_config,
)

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.loading import load_native, load_planning_parts
from headway_vllm.native import NativeEngine, ShownOrder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PATIENCE = 300.0


@dataclass
class Loaded:
    """The engine, and what stock vLLM says with the same weights and kernels."""

    engine: NativeEngine
    stock: Mapping[int, list[int]]

    def under(self, policy: str, **params: object) -> None:
        """Order by another policy from now on."""
        engine, readers = self.engine, worker_config().policies().worker
        engine._order = ShownOrder(registry.make("batching", policy, **params), readers)
        engine._parts.follow(engine._order)


@pytest.fixture(scope="module")
def loaded(monkeypatch_module: pytest.MonkeyPatch) -> Iterator[Loaded]:
    stock: dict[int, list[int]] = {}

    def load_parts(config: Any) -> Any:
        parts, num_blocks = load_planning_parts(config)
        stock.update(stock_outputs(parts.core)[0])
        return parts, num_blocks

    monkeypatch_module.setattr("headway_vllm.loading.load_planning_parts", load_parts)
    engine = load_native(worker_config(engine="vllm-native"))
    release = engine.release
    engine.release = lambda: None  # type: ignore[method-assign]
    yield Loaded(engine, stock)
    release()


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("policy", ["fcfs", "uniboost", "pascal", "headway", "srpt", "las"])
async def test_its_tokens_are_stock_vllms_under_every_order_though_requests_lose_their_blocks(
    loaded: Loaded, policy: str
) -> None:
    loaded.under(policy)
    async with Followed(loaded.engine) as found:
        requests = [request_of(number) for number in range(NUM_REQUESTS)]
        assert await found.serve(*requests) == loaded.stock
    lost = [each for step in found.steps if step.plan for each in step.plan.preempted]
    assert lost


async def test_its_plans_say_what_each_pass_computed(loaded: Loaded) -> None:
    loaded.under("fcfs")
    async with Followed(loaded.engine) as found:
        requests = [request_of(number, seed=number) for number in range(NUM_REQUESTS)]
        await found.serve(*requests)
    reached: dict[StreamKey, int] = {}
    for step in found.steps:
        assert step.plan is not None
        assert step.plan.num_added <= NUM_REQUESTS
        for key, _ in step.plan.preempted:
            reached.pop(key, None)
        for key, start, count in step.plan.computed:
            if key not in reached:  # what is cached comes first
                assert start % SIZE == 0
            assert start == reached.get(key, start)
            reached[key] = start + count
        for drawn in step.drawn:
            assert drawn.key in reached
    assert found.steps[-1].plan is not None
    assert found.steps[-1].plan.num_added == NUM_REQUESTS
    for request in requests:  # the last token's KV is not needed
        assert reached[request.key] == request.num_tokens + request.sampling.max_tokens - 1


@pytest.mark.parametrize("at", [1, 13, 79])
async def test_a_sampled_output_is_resumed_exactly(loaded: Loaded, at: int) -> None:
    loaded.under("uniboost")
    request = request_of(3, temperature=1.0, seed=5)
    async with Followed(loaded.engine) as found:
        whole = (await found.serve(request))[3]
    again = replace(request, output_token_ids=tuple(whole[:at]))
    others = [request_of(number, temperature=1.0) for number in (0, 1, 2)]
    async with Followed(loaded.engine) as found:
        assert (await found.serve(*others, again))[3] == whole[at:]


async def test_log_probabilities_are_those_of_headways_own_engine(loaded: Loaded) -> None:
    prompt = prompt_of(7)[:100]
    request = replace(request_of(7, num_logprobs=3, max_tokens=1), prompt_token_ids=prompt)
    async with Followed(loaded.engine) as found:
        await found.serve(request)
    (ours,) = found.drawn[-1].logprobs
    options = EngineOptions(num_blocks=64, block_size=16, dtype="float32", num_threads=1)
    torch_engine = TorchBackend.load(str(MODEL), options)
    item = PassItem(request.key, prompt, 0, list(range(7)), True, request.sampling, prompt, ())
    (theirs,) = torch_engine.run(ForwardPass(1, (item,))).sampled
    torch_engine.close()
    assert theirs.logprobs is not None
    assert found.drawn[-1].token_ids == (theirs.token_id,)
    assert ours.top_token_ids == theirs.logprobs.top_token_ids
    assert ours.top_logprobs == pytest.approx(theirs.logprobs.top_logprobs, abs=1e-4)


async def test_nothing_is_told_of_an_aborted_request_and_its_blocks_come_free(
    loaded: Loaded,
) -> None:
    engine = loaded.engine
    async with Followed(engine) as found:
        first, second = request_of(0, max_tokens=300), request_of(1)
        engine.add(first, 0)
        engine.add(second, 0)
        await found.until(lambda: any(d.key == first.key for d in found.drawn))
        engine.abort(first.key)
        engine.abort(StreamKey("g", 99))
        num_before = len(found.steps)
        await found.until(lambda: any(d.finish_reason is not None for d in found.drawn))
        late = [d for step in found.steps[num_before:] for d in step.drawn]
        assert {d.key for d in late} == {second.key}
    pool = engine._parts.core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == BLOCKS
    assert not engine._held


async def test_a_request_that_comes_back_under_its_name_is_another(loaded: Loaded) -> None:
    request = request_of(2)
    async with Followed(loaded.engine) as found:
        loaded.engine.add(request, 0)
        await found.until(lambda: bool(found.drawn))
        loaded.engine.abort(request.key)
        num_before = len(found.drawn)
        loaded.engine.add(request, 0)
        await found.until(lambda: any(d.finish_reason is not None for d in found.drawn))
        tokens = [token for drawn in found.drawn[num_before:] for token in drawn.token_ids]
        assert tokens == loaded.stock[2]


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"prompt_token_ids": (65, 10**6)}, "no token id"), ({}, "its grammar fails")],
)
async def test_one_that_cannot_be_served_fails_alone(
    loaded: Loaded, changed: Mapping[str, Any], named: str
) -> None:
    bad = replace(request_of(1), **changed)
    if not changed:
        broken = Constraints(grammar="this is no grammar")
        bad = replace(bad, sampling=replace(bad.sampling, constraints=broken))
    async with Followed(loaded.engine) as found:
        outputs = await found.serve(request_of(0), bad, request_of(2))
    failed = [drawn for drawn in found.drawn if drawn.finish_reason is FinishReason.ERROR]
    assert [drawn.key for drawn in failed] == [bad.key]
    assert named in failed[0].message
    assert {n: outputs[n] for n in (0, 2)} == {n: loaded.stock[n] for n in (0, 2)}


async def test_an_end_of_sequence_and_a_stop_token_end_it(loaded: Loaded) -> None:
    stop = loaded.stock[0][5]
    expected = loaded.stock[0][: loaded.stock[0].index(stop) + 1]
    async with Followed(loaded.engine) as found:
        request = request_of(0, stop_token_ids=(stop,))
        assert (await found.serve(request))[0] == expected
    assert found.drawn[-1].finish_reason is FinishReason.STOP


async def test_its_blocks_are_named_as_vllm_has_them(loaded: Loaded) -> None:
    info = loaded.engine.info
    assert (info.num_blocks, info.block_size, info.kv_layout) == (BLOCKS, SIZE, "")


@pytest.mark.parametrize("wrong", [{"host_kv_gib": 1.0}, {"device": "cuda"}])
def test_what_it_cannot_do_is_refused_before_it_loads(wrong: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError):
        load_native(worker_config(engine="vllm-native", **wrong))
