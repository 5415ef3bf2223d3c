"""vLLM's scheduler in a policy's order, without an engine: who is served in which step."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headway.policies import registry
from tests.fakes.vllm_rig import MODEL, Steps

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-vllm")

from headway_vllm.overhead import END, STOCK, drawn_by, make_scheduler, measure

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

POLICIES = sorted(registry.REGISTRY["batching"].keys() - {"fcfs"})
PLACES, BLOCKS, CHUNK = 16, 60, 256
BUSY, MOST_STEPS = 120, 6000
"""Steps in which requests come, and are aborted; steps within which all are served."""


def request(number: int, num_prompt: int, max_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    reasons = {"headway_reasons": number % 2}
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=reasons)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=[1] * num_prompt,
        sampling_params=params,
        pooling_params=None,
        arrival_time=1000.0 + number,
    )


def serve(policy: str, *, is_ahead: bool) -> tuple[Steps, dict[str, int]]:
    """Serve some requests where KV is short, and abort some; return the steps, and who drew."""
    from vllm.v1.request import RequestStatus

    model = str(MODEL)
    scheduler = make_scheduler(model, policy, PLACES, BLOCKS, chunk=CHUNK, is_ahead=is_ahead)
    random, number = Random(3), 0
    steps, drawn, in_flight = Steps(), dict[str, int](), list[tuple[Any, set[str]]]()
    while len(steps) < BUSY or scheduler.has_requests():
        assert len(steps) < MOST_STEPS, "whoever waits is served at last"
        if len(steps) < BUSY and random.random() < 0.4:
            number += 1
            lengths = random.randrange(5, 300), random.randrange(2, 150)
            scheduler.add_request(request(number, *lengths))
        if len(steps) < BUSY and len(steps) % 37 == 36 and scheduler.running:
            name = min(request.request_id for request in scheduler.running)
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        plan = scheduler.schedule()
        steps.append(dict(plan.num_scheduled_tokens))
        prompts = {name for name in steps[-1] if scheduler.requests[name].is_prefill_chunk}
        in_flight.append((plan, prompts))
        if len(in_flight) > is_ahead:
            plan, prompts = in_flight.pop(0)
            tokens = {
                name: [] if name in prompts else [END if random.random() < 0.02 else 5]
                for name in plan.num_scheduled_tokens
            }
            outputs = scheduler.update_from_output(plan, drawn_by(tokens))
            for out in (out for each in outputs.values() for out in each.outputs):
                drawn[out.request_id] = drawn.get(out.request_id, 0) + len(out.new_token_ids)
        if policy != STOCK:
            check(scheduler)
    return steps, drawn


def check(scheduler: Any) -> None:
    """The policy sees each request as vLLM does."""
    order = scheduler.headway
    for name, request in scheduler.requests.items():
        assert order.synced(name).num_output_tokens == request.num_output_tokens
    assert len(order.queue) == len(scheduler.requests)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_first_come_first_served_is_stock_vllm_step_for_step_ahead_of_the_tokens_too(
    is_ahead: bool,
) -> None:
    assert serve("fcfs", is_ahead=is_ahead) == serve(STOCK, is_ahead=is_ahead)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_serves_whoever_waits_where_kv_is_short(policy: str, is_ahead: bool) -> None:
    _, drawn = serve(policy, is_ahead=is_ahead)
    assert drawn


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_goes_on_where_a_better_one_finds_no_blocks(policy: str) -> None:
    scheduler = make_scheduler(str(MODEL), policy, PLACES, BLOCKS, chunk=CHUNK)
    scheduler.add_request(request(1, 7 * CHUNK + 8, 2))
    drawn: list[str] = []
    for step in range(100):
        if step == 7:
            scheduler.add_request(request(2, 2 * CHUNK, 2))
        plan = scheduler.schedule()
        names = plan.num_scheduled_tokens
        tokens = {n: [] if scheduler.requests[n].is_prefill_chunk else [5] for n in names}
        outputs = scheduler.update_from_output(plan, drawn_by(tokens))
        drawn += [out.request_id for each in outputs.values() for out in each.outputs]
        if step > 7 and not scheduler.has_requests():
            break
    assert sorted(drawn) == ["r1", "r1", "r2", "r2"]


@pytest.mark.parametrize("policy", [STOCK, "fcfs", "headway"])
def test_what_the_order_costs_is_measured(policy: str) -> None:
    cost = measure(str(MODEL), policy, running=8, waiting=4, num_steps=3)
    assert cost.step > 0
    assert (cost.order > 0) == (policy != STOCK)
