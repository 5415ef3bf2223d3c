"""The gateway's core, beside its scenarios: what they do not show, and what takes many steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    Deliver,
    SchedulerConnected,
    SchedulerDisconnected,
    Submit,
    WorkersMissing,
)
from headway.errors import Code
from headway.messages import Lost, Placed, TokenBatch
from headway.request import FinishReason, Request, SamplingParams, TokenLogprobs
from headway.service_class import ServiceClass, Standing
from tests.fakes.gateway_core import (
    SETTINGS,
    delivered,
    failures_in,
    gateway,
    opened,
    requests_in,
    submit,
    tokens,
)


def test_a_request_goes_to_the_scheduler_and_its_tokens_to_the_client() -> None:
    core = gateway()
    request = opened(core)
    assert (request.attempt, request.gateway_id, request.deadline_at) == (0, "g", 60.0)
    assert delivered(core.handle(tokens(request.stream_id, 0, [7, 8]), now=1.0)) == [7, 8]
    last = core.handle(tokens(request.stream_id, 2, [9], end=FinishReason.STOP), now=2.0)
    assert isinstance(last[0], Deliver)
    assert last[0].deliveries[0].finish_reason is FinishReason.STOP
    assert core.num_open == core.num_waiting == 0


def test_the_first_token_says_why_its_request_is_where_it_is() -> None:
    core = gateway()
    request = opened(core)
    core.handle(Placed(request.key, "w", 1, Role.UNIFIED, reason="quiescence"), now=0.5)
    (action,) = core.handle(tokens(request.stream_id, 0, [7, 8]), now=1.0)
    assert isinstance(action, Deliver)
    assert [d.decision for d in action.deliveries] == ["quiescence; unit=w/1", ""]


def test_logprobs_travel_with_their_token() -> None:
    core = gateway()
    request = opened(core)
    logprobs = TokenLogprobs(-0.5, (8,), (-0.5,))
    batch = replace(tokens(request.stream_id, 0, [7, 8]), logprobs={1: logprobs})
    (action,) = core.handle(batch, now=1.0)
    assert isinstance(action, Deliver)
    assert [d.logprobs for d in action.deliveries] == [None, logprobs]


@pytest.mark.parametrize(("lacking", "refused"), [("n", ["n"]), ("", ["m", "n"]), ("other", [])])
def test_only_requests_of_models_that_lack_workers_are_refused(
    lacking: str, refused: list[str]
) -> None:
    core = gateway(replace(SETTINGS, request_timeout=600.0, worker_patience=30.0))
    core.handle(SchedulerConnected(), now=0.0)
    for model in ("m", "n"):
        asked = Request(model, model, (1,), SamplingParams(max_tokens=2), 0.0)
        core.handle(Submit(asked), now=0.0)
    core.handle(WorkersMissing({lacking: "no worker decodes"}), now=5.0)
    assert failures_in(core.wake(now=34.0)) == []
    failures = failures_in(core.wake(now=35.0))
    assert [each.request_id for each in failures] == refused
    assert all(each.error.message.startswith("no worker decodes, for 30 s") for each in failures)


def test_backoff_doubles_up_to_its_limit_and_attempts_are_numbered() -> None:
    core = gateway(replace(SETTINGS, request_timeout=600.0))
    request, now, waits = opened(core), 0.0, []
    for _ in range(7):
        core.handle(Lost((request.key,), "killed"), now=now)
        wakeup = core.next_wakeup
        assert wakeup is not None
        waits.append(round(wakeup - now, 3))
        now = wakeup
        (request,) = requests_in(core.wake(now=now))
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert request.attempt == core.streams.num_resubmitted == 7
    (fail,) = failures_in(core.handle(Lost((request.key,), "killed"), now=now))
    assert fail.error.code is Code.UNAVAILABLE
    assert "8 times" in fail.error.message
    assert core.num_open == 0


def test_timers_of_ended_requests_do_not_pile_up() -> None:
    core = gateway()
    for i in range(10_000):
        request = opened(core, str(i))
        core.handle(tokens(request.stream_id, 0, [1], end=FinishReason.STOP), now=0.0)
    assert len(core.streams.requests._timers) < 100


def test_a_burst_of_what_yields_by_its_class_is_none() -> None:
    core = gateway(replace(SETTINGS, burst="dual-signal", max_waiting=100))
    batch = Standing(service=ServiceClass("batch", yields=True))
    for number in range(9):
        event = submit(f"r{number}", at=30.0)
        event = replace(event, request=replace(event.request, standing=batch))
        (request,) = requests_in(core.handle(event, now=30.0))
        assert not request.is_burst
    assert core.num_burst_tokens == 0


def test_prompt_tokens_that_are_labelled_as_burst_are_counted() -> None:
    assert gateway().num_burst_tokens is None
    core = gateway(replace(SETTINGS, burst="dual-signal", max_waiting=100))
    requests = [opened(core, f"r{n}", now=at) for n, at in enumerate((0.0, *[30.0] * 9))]
    labelled = [len(r.prompt_token_ids) for r in requests if r.is_burst]
    assert core.num_burst_tokens == sum(labelled) > 0


def test_a_scheduler_that_comes_and_goes_leaves_few_timers_behind() -> None:
    core = gateway(replace(SETTINGS, max_waiting=100))
    for number in range(100):
        core.handle(submit(f"r{number}"), now=0.0)
    for turn in range(50):
        core.handle(SchedulerDisconnected(), now=1.0 + turn / 100)
        core.handle(SchedulerConnected(), now=1.0 + turn / 100)
    core.handle(SchedulerDisconnected(), now=2.0)
    failed, num_wakes = 0, 0
    while not failed and (at := core.next_wakeup) is not None:
        num_wakes += 1
        failed = len(failures_in(core.wake(now=at)))
    assert failed == 100, "nobody has led for long"
    assert num_wakes < 10


def joined(one: TokenBatch, other: TokenBatch) -> TokenBatch:
    """Both in one batch."""
    return replace(
        one,
        stream_ids=[*one.stream_ids, *other.stream_ids],
        indices=[*one.indices, *other.indices],
        token_ids=[*one.token_ids, *other.token_ids],
        finish_reasons=[*one.finish_reasons, *other.finish_reasons],
    )


def test_no_more_than_a_small_number_of_tokens_waits() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, max_model_len=100_000))
    core.handle(SchedulerConnected(), now=0.0)
    (request,) = requests_in(core.handle(submit("r", max_tokens=10_000), now=0.0))
    for index in range(1000):
        core.handle(tokens(request.stream_id, index, [7]), now=1.0)
    assert len(delivered(core.handle(Placed(request.key, "w", 0, Role.UNIFIED), now=1.1))) == 256


def test_an_early_end_before_another_end_is_one_end() -> None:
    core = gateway()
    request, other = opened(core, "r"), opened(core, "s")
    core.handle(tokens(request.stream_id, 1, [8], end=FinishReason.STOP), now=1.0)
    both = joined(
        tokens(request.stream_id, 0, [7], end=FinishReason.STOP), tokens(other.stream_id, 0, [9])
    )
    assert delivered(core.handle(both, now=1.0)) == [7, 9]
    assert core.num_open == 1
    assert not failures_in(core.wake(now=5.0))


def test_stream_ids_are_drawn_and_a_drawn_one_is_not_used_twice() -> None:
    drawn = iter([5, 5, 5, 2**64 - 1])
    core = GatewayCore("g", "g:1", SETTINGS, draw_stream_id=lambda: next(drawn))
    core.handle(SchedulerConnected(), now=0.0)
    assert [opened(core, name).stream_id for name in "ab"] == [5, 2**64 - 1]
