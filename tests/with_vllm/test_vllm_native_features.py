"""What vLLM allows inside a worker when it plans by itself: speculation, and windows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from headway.engine import Drawn
from headway.errors import HeadwayError
from headway.policies import registry
from headway.request import BadWord, Constraints, FinishReason, Request, StreamKey
from tests.fakes.followed import Followed
from tests.fakes.vllm_models import windowed_model
from tests.fakes.vllm_plain import make_way
from tests.fakes.vllm_rig import NUM_REQUESTS, request_of, stock_outputs, worker_config

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.loading import load_native, load_parts, load_planning_parts
from headway_vllm.native import NativeEngine, ShownOrder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
PATIENCE = 300.0
LONG = 180
"""Tokens of an output that outgrows the windows, whose blocks come free as it goes on."""
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
SPECULATES = {"vllm": {"speculative_config": DRAFTS}}
FORM = Constraints(grammar=LLMatcher.grammar_from_regex(r"[a-m]{30,40}-[n-z]{20,30}"))
WORDS = Constraints(
    bad_words=(BadWord((32,)), BadWord((101, 32))), biased_token_ids=(97, 98), biases=(2.0, -2.0)
)
KINDS: Sequence[Mapping[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
    {"constraints": FORM},
    {"num_logprobs": 3},
    {"temperature": 0.6, "seed": 8, "top_k": 20, "top_p": 0.9, "num_logprobs": 2},
    {"temperature": 0.8, "seed": 1, "constraints": FORM},
    {"constraints": WORDS, "ignore_eos": False, "min_tokens": 20},
]
"""Parameters of the requests of a run, each its own."""


def mixed() -> list[Request]:
    return [request_of(number, **KINDS[number]) for number in range(NUM_REQUESTS)]


def following(engine: NativeEngine, policy: str) -> Followed[NativeEngine]:
    readers = worker_config().policies().worker
    engine._order = ShownOrder(registry.make("batching", policy), readers)
    engine._parts.follow(engine._order)
    return Followed(engine)


@contextmanager
def loaded(stock: dict[int, list[int]] | None = None, **options: Any) -> Iterator[NativeEngine]:
    """An engine that serves again after its end; ``stock`` takes what vLLM itself answers."""

    def load(config: Any) -> Any:
        parts, num_blocks = load_planning_parts(config)
        if stock is not None:
            stock.update(stock_outputs(parts.core, LONG)[0])
        return parts, num_blocks

    make_way()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway_vllm.loading.load_planning_parts", load)
        engine = load_native(worker_config(engine="vllm-native", **options))
    release = engine.release
    engine.release = lambda: None  # type: ignore[method-assign]
    yield engine
    release()
    make_way()


# --- speculation --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> Mapping[int, list[Drawn]]:
    """What the requests are answered without drafts."""

    async def ask(engine: NativeEngine) -> dict[int, list[Drawn]]:
        async with following(engine, "fcfs") as found:
            await found.serve(*mixed())
            return {number: found.of(number) for number in range(NUM_REQUESTS)}

    with loaded() as engine:
        return asyncio.run(ask(engine))


@pytest.fixture(scope="module")
def speculating(plain: object) -> Iterator[NativeEngine]:
    with loaded(engine_args=SPECULATES) as engine:
        yield engine


@pytest.mark.parametrize("policy", ["fcfs", "uniboost", "headway"])
async def test_drafts_change_no_token_and_no_log_probability(
    speculating: NativeEngine, plain: Mapping[int, list[Drawn]], policy: str
) -> None:
    async with following(speculating, policy) as found:
        await found.serve(*mixed())
    for number, expected in plain.items():
        assert found.outputs()[number] == [token for each in expected for token in each.token_ids]
        assert found.of(number)[-1].finish_reason is expected[-1].finish_reason
        ours = [each for drawn in found.of(number) for each in drawn.logprobs]
        theirs = [each for drawn in expected for each in drawn.logprobs]
        assert [each.top_token_ids for each in ours] == [each.top_token_ids for each in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-3)
    assert any(len(drawn.token_ids) > 1 for drawn in found.drawn)
    accepted = sum(len(drawn.token_ids) - 1 for drawn in found.drawn)
    assert sum(step.num_accepted for step in found.steps) >= accepted > 0
    assert sum(step.num_drafts for step in found.steps) > accepted
    assert [lost for step in found.steps if step.plan for lost in step.plan.preempted]


async def test_its_plans_leave_out_the_drafts_that_were_wrong(speculating: NativeEngine) -> None:
    async with following(speculating, "fcfs") as found:
        await found.serve(*[request_of(number) for number in range(NUM_REQUESTS)])
    reached: dict[StreamKey, int] = {}
    for step in found.steps:
        assert step.plan is not None
        for key, _ in step.plan.preempted:
            reached.pop(key, None)
        for key, start, count in step.plan.computed:
            assert start == reached.get(key, start)
            reached[key] = start + count
    request = request_of(0)
    assert reached[request.key] == request.num_tokens + request.sampling.max_tokens - 1


@pytest.mark.parametrize("at", [1, 13, 79])
async def test_a_sampled_output_is_resumed_exactly_among_drafts(
    speculating: NativeEngine, plain: Mapping[int, list[Drawn]], at: int
) -> None:
    whole = [token for each in plain[1] for token in each.token_ids]
    again = replace(mixed()[1], output_token_ids=tuple(whole[:at]))
    async with following(speculating, "uniboost") as found:
        await found.serve(request_of(0), again, request_of(2))
    assert found.outputs()[1] == whole[at:]


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ({"max_tokens": 5}, FinishReason.LENGTH),
        ({"stop_token_ids": (ord("y"),)}, FinishReason.STOP),
    ],
)
async def test_a_request_ends_inside_its_accepted_drafts(
    speculating: NativeEngine, ends: Mapping[str, Any], reason: FinishReason
) -> None:
    form = Constraints(grammar=LLMatcher.grammar_from_regex("ab(wxyz){5}"))
    request = request_of(0, **{"constraints": form, "ignore_eos": False, **ends})
    request = replace(request, prompt_token_ids=tuple(b"wxyz" * 10))
    async with following(speculating, "fcfs") as found:
        await found.serve(request)
    assert bytes(found.outputs()[0]) == b"abwxy"
    last = found.of(0)[-1]
    assert bytes(last.token_ids) == b"xy"
    assert last.finish_reason is reason


def test_an_engine_whose_passes_headway_plans_refuses_drafts_by_name() -> None:
    with pytest.raises(HeadwayError, match="speculative_config"):
        load_parts(worker_config(engine="vllm", engine_args=SPECULATES))


# --- windows ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windowed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[NativeEngine, Mapping[int, list[int]]]]:
    """An engine whose model has layers with windows beside one without."""
    model, stock = windowed_model(tmp_path_factory.mktemp("model")), dict[int, list[int]]()
    with loaded(stock, model=str(model), num_blocks=17) as engine:
        assert engine._parts.num_kinds > 1
        yield engine, stock


@pytest.mark.parametrize("policy", ["fcfs", "uniboost", "headway"])
async def test_a_model_with_windows_has_the_tokens_of_stock_vllm_under_every_order(
    windowed: tuple[NativeEngine, Mapping[int, list[int]]], policy: str
) -> None:
    engine, stock = windowed
    async with following(engine, policy) as found:
        await found.serve(*[request_of(n, max_tokens=LONG) for n in range(NUM_REQUESTS)])
    assert {number: found.outputs()[number] for number in stock} == stock
    assert [lost for step in found.steps if step.plan for lost in step.plan.preempted]


@pytest.mark.parametrize("at", [1, 50])
async def test_a_model_with_windows_resumes_a_sampled_output_exactly(
    windowed: tuple[NativeEngine, Mapping[int, list[int]]], at: int
) -> None:
    engine, _ = windowed
    request = request_of(4, temperature=1.0, seed=5)
    async with following(engine, "uniboost") as found:
        await found.serve(request)
    whole = found.outputs()[4]
    again = replace(request, output_token_ids=tuple(whole[:at]))
    async with following(engine, "uniboost") as found:
        await found.serve(request_of(0), again, request_of(1, temperature=1.0))
    assert found.outputs()[4] == whole[at:]


def test_an_engine_whose_passes_headway_plans_refuses_windows_by_name(tmp_path: Path) -> None:
    make_way()
    with pytest.raises(HeadwayError, match="kinds of KV"):
        load_parts(worker_config(engine="vllm", model=str(windowed_model(tmp_path))))
