"""The gateway's core: admission, ends, resubmission, order."""

from __future__ import annotations

from dataclasses import replace

from headway.cluster import Role
from headway.core.gateway.events import (
    Deliver,
    Delivery,
    SchedulerConnected,
    SchedulerDisconnected,
    WorkerDetached,
)
from headway.errors import Code
from headway.messages import CancelStream, Lost, Placed
from headway.request import FinishReason, TokenLogprobs
from headway.service_class import ServiceClass, Standing
from tests.fakes.gateway_core import (
    SETTINGS,
    delivered,
    failure,
    failures_in,
    gateway,
    opened,
    requests_in,
    resubmitted,
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


def test_the_hint_grows_with_the_time_between_first_tokens() -> None:
    core = gateway()
    for at in (0.0, 4.0):
        core.handle(tokens(opened(core, str(at), now=at).stream_id, 0, [1]), now=at)
    for i in range(3):
        opened(core, str(i), now=4.0)
    (fail,) = failures_in(core.handle(submit("r", at=4.0), now=4.0))
    assert fail.error.retry_after == 12.0


def test_an_old_gap_does_not_shorten_the_patience_with_a_new_one() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 1, [8]), now=1.0)
    core.handle(tokens(request.stream_id, 0, [7]), now=1.5)
    core.handle(tokens(request.stream_id, 3, [10]), now=1.9)
    assert core.wake(now=2.0) == []
    assert core.wake(now=2.9) != []


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


def test_what_the_engine_refuses_ends_at_once_with_its_words() -> None:
    core = gateway()
    request = opened(core)
    refused = failure(request.stream_id, code=Code.INVALID_ARGUMENT)
    (fail,) = failures_in(core.handle(refused, now=0.0))
    assert (fail.error.code, fail.error.message) == (Code.INVALID_ARGUMENT, "no luck")
    assert core.num_open == 0


def test_a_busy_engine_is_no_fault_of_the_request() -> None:
    core = gateway()
    request, now = opened(core), 0.0
    for _ in range(3):
        busy = failure(request.stream_id, code=Code.UNAVAILABLE)
        assert failures_in(core.handle(busy, now=now)) == []
        assert core.next_wakeup is not None
        now = core.next_wakeup
        request = resubmitted(core, now=now)


def test_a_request_over_its_deadline_ends_with_what_it_has_and_is_stopped_everywhere() -> None:
    core = gateway()
    request = opened(core, may_be_cut=True)
    core.handle(tokens(request.stream_id, 0, [1]), now=0.0)
    assert core.wake(now=59.9) == []
    actions = core.wake(now=60.0)
    assert CancelStream(request.key) in actions
    assert failures_in(actions) == []
    (delivered,) = [action for action in actions if isinstance(action, Deliver)]
    end = Delivery(request.request_id, None, None, FinishReason.LENGTH, is_cut=True)
    assert delivered.deliveries == [end]
    assert core.num_open == 0
    assert core.num_waiting == 0


def test_who_reads_already_waits_for_a_scheduler_until_its_deadline() -> None:
    core = gateway()
    request = opened(core, may_be_cut=True)
    core.handle(tokens(request.stream_id, 0, [1]), now=0.0)
    core.handle(SchedulerDisconnected(), now=1.0)
    core.handle(WorkerDetached("w"), now=1.0)
    assert failures_in(core.wake(now=2.0)) == []
    assert failures_in(core.wake(now=50.0)) == []
    assert core.num_open == 1
    actions = core.wake(now=60.0)
    assert [a.deliveries[-1].is_cut for a in actions if isinstance(a, Deliver)] == [True]


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
