"""vLLM as the engine of a worker: its tokens are stock vLLM's whatever Headway plans."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest

from headway.engine import IncomingKv, PassFailure
from headway.errors import HeadwayError
from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.local.store import free_port
from services.runtime.reasoning import tokenizer_file
from services.worker.engine.backend import TorchBackend
from services.worker.engine.options import EngineOptions
from tests.fakes.vllm_rig import (
    MODEL,
    NUM_REQUESTS,
    Steps,
    prompt_of,
    request_of,
    stock_outputs,
    worker_config,
)
from tests.fakes.vllm_serving import HOST_BLOCKS, serve

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.backend import VllmBackend
from headway_vllm.inside import UNTRIED
from headway_vllm.loading import load_parts
from headway_vllm.settings import SETTING, read_settings
from headway_vllm.shim import VERSIONS, require_version

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@dataclass
class Loaded:
    """The engine, and what stock vLLM says with the same weights and kernels."""

    backend: VllmBackend
    stock: Mapping[int, list[int]]
    steps: Steps
    core: Any
    runner: Any
    sampler: Any

    def under(self, policy: str, **params: object) -> Any:
        """A scheduler of vLLM in a policy's order, for the same engine."""
        from headway_vllm import HeadwayScheduler

        own = self.core.scheduler
        os.environ[SETTING] = json.dumps({"batching": policy, "params": params})
        try:
            return HeadwayScheduler(
                vllm_config=self.core.vllm_config,
                kv_cache_config=own.kv_cache_config,
                structured_output_manager=self.core.structured_output_manager,
                block_size=own.block_size,
                log_stats=False,
            )
        finally:
            del os.environ[SETTING]

    def run(self, scheduler: Any) -> tuple[Mapping[int, list[int]], Steps]:
        """Serve the same requests with vLLM's sampler under this scheduler."""
        runner, own = (
            self.core.model_executor.driver_worker.worker.model_runner,
            self.core.scheduler,
        )
        drawer, runner.sampler, self.core.scheduler = runner.sampler, self.sampler, scheduler
        try:
            return stock_outputs(self.core)
        finally:
            runner.sampler, self.core.scheduler = drawer, own


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    config = worker_config(engine="vllm", host_kv_gib=0.01)
    parts, num_blocks, _ = load_parts(config)
    sampler = parts.runner.sampler
    stock, steps = stock_outputs(parts.core)
    backend = VllmBackend(parts, num_blocks, HOST_BLOCKS, tokenizer_file(str(MODEL)))
    backend.warm_up()
    yield Loaded(backend, stock, steps, parts.core, parts.runner, sampler)
    backend.close()


@pytest.fixture(scope="module")
def torch_engine() -> Iterator[TorchBackend]:
    options = EngineOptions(num_blocks=64, block_size=16, dtype="float32", num_threads=1)
    backend = TorchBackend.load(str(MODEL), options)
    backend.warm_up()
    yield backend
    backend.close()


@pytest.mark.parametrize("policy", ["fcfs", "uniboost", "pascal", "headway", "srpt", "las"])
def test_its_tokens_are_stock_vllms_under_every_order_though_requests_lose_their_blocks(
    loaded: Loaded, policy: str
) -> None:
    requests = [request_of(number) for number in range(NUM_REQUESTS)]
    served = serve(loaded.backend, requests, policy)
    assert served.outputs == loaded.stock
    counts = served.core.preemptions
    assert counts.num_voluntary + counts.num_forced > 0


def test_its_tokens_are_stock_vllms_when_kv_waits_in_host_memory(loaded: Loaded) -> None:
    requests = [request_of(number) for number in range(NUM_REQUESTS)]
    served = serve(loaded.backend, requests, "pascal", host_blocks=HOST_BLOCKS)
    assert served.outputs == loaded.stock
    assert served.num_swaps > 0


@pytest.mark.parametrize("at", [1, 13, 79])
def test_a_sampled_output_is_resumed_exactly(loaded: Loaded, at: int) -> None:
    request = request_of(3, temperature=1.0, seed=5)
    (whole,) = serve(loaded.backend, [request]).outputs.values()
    again = replace(request, output_token_ids=tuple(whole[:at]))
    others = [request_of(number, temperature=1.0) for number in (0, 1, 2)]
    assert serve(loaded.backend, [*others, again], "uniboost").outputs[3] == whole[at:]


def item_of(tokens: tuple[int, ...], start: int, blocks: list[int], number: int = 1) -> PassItem:
    key, params = StreamKey("g", number), SamplingParams(temperature=0.0, num_logprobs=3)
    prompt, new = tokens[:100], tokens[start:]
    return PassItem(key, new, start, blocks, True, params, prompt, tokens[100:])


def test_hidden_states_and_log_probabilities_are_those_of_headways_own_engine(
    loaded: Loaded, torch_engine: TorchBackend
) -> None:
    prompt = prompt_of(7)[:100]
    ours = loaded.backend.run(ForwardPass(1, (item_of(prompt, 0, [3, 5, 7, 9]),), hidden=(0,)))
    theirs = torch_engine.run(ForwardPass(1, (item_of(prompt, 0, list(range(7))),), hidden=(0,)))
    assert ours.hidden is not None
    assert theirs.hidden is not None
    np.testing.assert_allclose(ours.hidden.values, theirs.hidden.values, atol=4e-3)
    (one,), (other,) = ours.sampled, theirs.sampled
    assert one.token_id == other.token_id
    assert one.logprobs is not None
    assert other.logprobs is not None
    assert one.logprobs.top_logprobs == pytest.approx(other.logprobs.top_logprobs, abs=1e-4)


def greedy(engine: Any, blocks: list[int], tokens: list[int], start: int, count: int) -> list[int]:
    """The next tokens of a context whose KV before ``start`` is in the blocks."""
    found = list(tokens)
    for number in range(count):
        item = item_of(tuple(found), start, blocks, number=9)
        (sampled,) = engine.run(ForwardPass(number + 1, (item,))).sampled
        start = len(found)
        found.append(sampled.token_id)
    return found[len(tokens) :]


@pytest.mark.parametrize("sends", ["vllm", "torch"])
def test_kv_goes_between_vllm_and_headways_own_engine(
    loaded: Loaded, torch_engine: TorchBackend, sends: str
) -> None:
    assert loaded.backend.info.kv_layout == torch_engine.info.kv_layout
    ends: dict[str, tuple[Any, list[int]]] = {
        "vllm": (loaded.backend, [4, 2, 11, 6, 8]),
        "torch": (torch_engine, list(range(20, 30))),
    }
    source, own = ends[sends]
    target, theirs = ends["torch" if sends == "vllm" else "vllm"]
    prompt = list(prompt_of(2)[:100])
    expected = greedy(source, own, prompt, 0, 12)
    first = expected[0]
    filled = own[: -(-100 // source.info.block_size)]
    shape = source.kv_shape(len(filled))
    writer = target.kv_writer(IncomingKv(theirs, shape, source.info.dtype, 100))
    for piece in source.read_kv(filled):
        writer.feed(piece)
    writer.finish()
    assert greedy(target, theirs, [*prompt, first], 100, 11) == expected[1:]


@pytest.mark.parametrize(
    ("blocks", "token", "named"),
    [([0], 65, "block table holds"), ([0, 99], 65, "beyond 29"), ([0, 1], 10**6, "not a token")],
)
def test_an_item_that_contradicts_itself_fails_by_its_request(
    loaded: Loaded, blocks: list[int], token: int, named: str
) -> None:
    item = item_of((token,) * 40, 0, blocks)
    with pytest.raises(PassFailure, match=named) as failed:
        loaded.backend.run(ForwardPass(1, (item,)))
    assert failed.value.keys == (StreamKey("g", 1),)


# --- the order of a plain vLLM ------------------------------------------------------------


def test_first_come_first_served_through_the_plug_in_is_stock_vllm_step_for_step(
    loaded: Loaded,
) -> None:
    outputs, steps = loaded.run(loaded.under("fcfs"))
    assert outputs == loaded.stock
    assert steps == loaded.steps


@pytest.mark.parametrize("policy", ["uniboost", "pascal", "headway", "srpt", "las"])
def test_a_plain_vllm_in_another_order_says_the_same(loaded: Loaded, policy: str) -> None:
    scheduler = loaded.under(policy)
    pause, orders = scheduler._pause, list[list[Any]]()

    def noted(*args: Any) -> Any:
        orders.append([scheduler._place(request) for request in scheduler.running])
        return pause(*args)

    scheduler._pause = noted
    outputs, steps = loaded.run(scheduler)
    assert outputs == loaded.stock
    assert orders
    assert orders == [sorted(order) for order in orders]
    if policy in ("uniboost", "las"):  # the others know too little of these requests
        assert steps != loaded.steps
    assert scheduler.headway.num_voluntary + scheduler.headway.num_forced > 0
    assert not scheduler.headway.queue.running
    assert not scheduler.headway.queue.waiting


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"scheduler_cls": "x.Y"}, "batching"),
        ({"async_scheduling": True}, "worker.async-scheduling"),
        ({"block_size": 64}, "block_size"),
        ({"kv_cache_memory_bytes": 1}, "kv-cache-gib"),
        ({"enable_lora": True}, "plain vLLM"),
        ({"max_num_batched_tokens": 64}, "chunk-tokens"),
        ({"speculative_config": "ngram"}, "vLLM refuses"),
    ],
)
def test_options_that_are_not_a_workers_are_refused_with_the_way_out(
    options: dict[str, object], way_out: str
) -> None:
    config = worker_config(engine="vllm", max_running=8, engine_args={"vllm": options})
    with pytest.raises(HeadwayError, match=way_out):
        load_parts(config)


def test_who_gives_way_loses_its_blocks_ahead_of_need_until_the_reserve_is_free(
    loaded: Loaded,
) -> None:
    scheduler = loaded.under("headway", reserve=0.3)
    order, clear, kept = scheduler.headway, scheduler._clear, list[bool]()
    order.policy.gives_way = lambda candidate: candidate.key.stream_id % 2 == 0

    def gives_way(request: Any) -> bool:
        return bool(order.gives_way(request.request_id))

    def noted() -> Any:
        names = [gives_way(request) for request in scheduler.running]
        limit, running = clear(), scheduler.running
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if scheduler._is_short():
            kept.append(names == sorted(names))
        kept.append(free >= scheduler._reserve or len(running) < 2 or not gives_way(running[-1]))
        return limit

    scheduler._clear = noted
    outputs, _ = loaded.run(scheduler)
    assert outputs == loaded.stock
    assert all(kept)
    assert 0 < order.num_voluntary < NUM_REQUESTS  # nobody comes back before there is room for it


def test_a_plain_vllm_serves_metrics_of_its_order(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway_vllm.metrics import serve_metrics

    port = free_port()
    scheduler = loaded.under("uniboost")
    serve_metrics(scheduler, str(port))
    loaded.run(scheduler)
    found = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in found.splitlines() if line[0] != "#")
    assert float(values["headway_vllm_steps_total"]) == scheduler.headway_steps > 0
    assert float(values["headway_vllm_order_seconds_total"]) > 0
    assert float(values["headway_vllm_gamma_per_s"]) == scheduler.headway.policy.gamma
    kinds = [f'headway_vllm_preemptions_total{{kind="{kind}"}}' for kind in ("voluntary", "forced")]
    assert sum(float(values[kind]) for kind in kinds) > 0
    with pytest.raises(HeadwayError, match=f"127.0.0.1:{port}"):
        serve_metrics(scheduler, f"127.0.0.1:{port}")
    monkeypatch.setenv(SETTING, json.dumps({"metrics": "127.0.0.1:9402"}))
    assert read_settings().metrics == "127.0.0.1:9402"


@pytest.mark.parametrize(
    "given", ["{", '{"batchng": "las"}', '{"metrics": "all"}', '{"metrics": "h:99999"}']
)
def test_wrong_settings_of_the_plug_in_are_refused(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(SETTING, given)
    with pytest.raises(HeadwayError, match=SETTING):
        read_settings()


# --- versions -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0+cpu", "0.310.0", "1.32.0", "dev"])
def test_another_minor_of_vllm_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.delenv(UNTRIED, raising=False)
    monkeypatch.setattr("vllm.__version__", version)
    with pytest.raises(HeadwayError) as refused:
        require_version()
    assert all(named in refused.value.message for named in (version, UNTRIED, *VERSIONS))
    monkeypatch.setenv(UNTRIED, "1")
    require_version()


def test_a_worker_is_told_how_many_requests_a_pass_of_vllm_takes(loaded: Loaded) -> None:
    assert loaded.backend.info.max_running == loaded.runner.max_num_reqs == 256


# --- GPUs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "allowed", "more", "named"),
    [
        ("cuda", False, {}, "untested_gpu"),
        ("cuda:1", True, {}, "CUDA_VISIBLE_DEVICES"),
        ("cuda", True, {"num_blocks": 0}, "kv_cache_gib"),
        ("cuda", True, {}, "computes on 'cpu'"),
    ],
)
def test_a_gpu_is_refused_unless_it_is_asked_for_and_there(
    device: str, allowed: bool, more: dict[str, Any], named: str
) -> None:
    args = {"untested_gpu": True} if allowed else {}
    config = worker_config(engine="vllm", device=device, engine_args=args, **more)
    with pytest.raises(HeadwayError, match=named) as refused:
        load_parts(config)
    assert refused.value.param == "device"
