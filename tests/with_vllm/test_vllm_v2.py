"""vLLM's model runner V2 under Headway's plans: the form of a plan, slots, and who is left out.

``make test-vllm`` runs this file, and those of V1, in a process whose vLLM has V2
(``tests/fakes/triton_cpu.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.forward_pass import ForwardPass, PassItem
from headway.request import SamplingParams, StreamKey
from services.runtime.reasoning import tokenizer_file
from tests.fakes.vllm_rig import MODEL, NUM_REQUESTS, prompt_of, stock_outputs, worker_config

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")
if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
    pytest.skip("needs -p tests.fakes.triton_cpu: make test-vllm", allow_module_level=True)

from headway_vllm.backend import VllmBackend
from headway_vllm.loading import load_parts
from headway_vllm.plans import NULL_BLOCKS, PassTranslator
from headway_vllm.runner_v2 import RunnerV2
from headway_vllm.runners import runner_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


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

    backend: VllmBackend
    recorded: Recorded


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    parts, num_blocks, _ = load_parts(worker_config(engine="vllm"))
    assert isinstance(runner_of(parts.executor)[1], RunnerV2)
    recorded = Recorded()
    recorded.listen(parts.core.scheduler)
    stock_outputs(parts.core)
    backend = VllmBackend(parts, num_blocks, 0, tokenizer_file(str(MODEL)))
    backend.warm_up()
    yield Loaded(backend, recorded)
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


def _serve(backend: VllmBackend, rounds: Sequence[Sequence[int]]) -> Mapping[int, list[int]]:
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
