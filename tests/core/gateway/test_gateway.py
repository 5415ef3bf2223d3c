"""The gateway's core: admission, ends, resubmission, order."""

from __future__ import annotations

from dataclasses import replace

from headway.cluster import Role
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Delivery,
    Release,
    SchedulerConnected,
    SchedulerDisconnected,
    WorkerDetached,
)
from headway.errors import Code
from headway.messages import CancelStream, Lost, Placed, Rejected
from headway.request import FinishReason, StreamKey, TokenLogprobs
from headway.service_class import ServiceClass, Standing
from tests.fakes.gateway_core import (
    SETTINGS,
    delivered,
    failure,
    failures_in,
    gateway,
    opened,
    place,
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


def test_prompt_and_output_over_the_context_are_refused_with_the_numbers() -> None:
    core = gateway()
    (fail,) = failures_in(core.handle(submit("r", max_tokens=97), now=0.0))
    assert fail.error.code is Code.INVALID_ARGUMENT
    assert fail.error.param == "max_tokens"
    assert "101" in fail.error.message
    assert "100" in fail.error.message
    (fail,) = failures_in(core.handle(submit("s", num_prompt=200), now=0.0))
    assert fail.error.param == "prompt"


def test_too_many_waiting_are_refused_and_told_when_to_come_back() -> None:
    core = gateway()
    streams = [opened(core, str(i)).stream_id for i in range(3)]
    (fail,) = failures_in(core.handle(submit("r"), now=0.0))
    assert fail.error.code is Code.RESOURCE_EXHAUSTED
    assert fail.error.retry_after >= 1.0
    core.handle(tokens(streams[0], 0, [1]), now=0.0)
    assert requests_in(core.handle(submit("s"), now=0.0))


def test_the_hint_grows_with_the_time_between_first_tokens() -> None:
    core = gateway()
    for at in (0.0, 4.0):
        core.handle(tokens(opened(core, str(at), now=at).stream_id, 0, [1]), now=at)
    for i in range(3):
        opened(core, str(i), now=4.0)
    (fail,) = failures_in(core.handle(submit("r", at=4.0), now=4.0))
    assert fail.error.retry_after == 12.0


def test_a_repeated_token_is_dropped() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7, 8]), now=1.0)
    assert delivered(core.handle(tokens(request.stream_id, 0, [7, 8, 9]), now=1.0)) == [9]


def test_an_end_that_comes_with_a_repeated_token_ends_the_request() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7, 8]), now=1.0)
    again = tokens(request.stream_id, 1, [8], end=FinishReason.LENGTH)
    assert delivered(core.handle(again, now=1.0)) == [None]
    assert core.num_open == 0


def test_tokens_that_overtake_each_other_are_put_in_order() -> None:
    core = gateway()
    request = opened(core)
    place(core, request, "w", target="decode")
    late = tokens(request.stream_id, 1, [8, 9], end=FinishReason.STOP, worker="decode")
    assert delivered(core.handle(late, now=1.0)) == []
    assert delivered(core.handle(tokens(request.stream_id, 0, [7]), now=1.1)) == [7, 8, 9]
    assert core.num_open == 0


def test_a_gap_that_stays_is_run_again_from_before_it() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7]), now=1.0)
    core.handle(tokens(request.stream_id, 2, [9]), now=1.0)
    assert core.next_wakeup == 2.0
    assert CancelTokens("w", (request.stream_id,)) in core.wake(now=2.0)
    (again,) = requests_in(core.wake(now=2.05))
    assert again.output_token_ids == (7,)
    assert again.stream_id != request.stream_id


def test_an_old_gap_does_not_shorten_the_patience_with_a_new_one() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 1, [8]), now=1.0)
    core.handle(tokens(request.stream_id, 0, [7]), now=1.5)
    core.handle(tokens(request.stream_id, 3, [10]), now=1.9)
    assert core.wake(now=2.0) == []
    assert core.wake(now=2.9) != []


def test_a_lost_request_goes_on_behind_its_tokens_under_a_new_stream_id() -> None:
    core = gateway()
    first = opened(core)
    core.handle(tokens(first.stream_id, 0, [7, 8]), now=1.0)
    assert requests_in(core.handle(Lost((first.key,), "killed"), now=2.0)) == []
    second = resubmitted(core, now=2.05)
    assert second.request_id == first.request_id
    assert (second.attempt, second.output_token_ids) == (1, (7, 8))
    stale = core.handle(tokens(first.stream_id, 2, [9]), now=2.1)
    assert list(stale) == [CancelTokens("w", (first.stream_id,))]
    assert delivered(core.handle(tokens(second.stream_id, 2, [9]), now=2.2)) == [9]
    assert core.streams.num_resubmitted == 1


def test_a_broken_token_stream_runs_again_what_that_worker_had_and_nothing_else() -> None:
    core = gateway()
    here, there, nowhere = (opened(core, name, on="") for name in ("a", "b", "c"))
    place(core, here, "w")
    place(core, there, "v")
    core.handle(tokens(there.stream_id, 0, [1], worker="v"), now=0.0)
    core.handle(tokens(here.stream_id, 0, [1], worker="w"), now=0.5)
    actions = core.handle(WorkerDetached("w"), now=1.0)
    assert CancelStream(here.key) in actions
    assert [r.request_id for r in requests_in(core.wake(now=1.05))] == ["a"]
    place(core, nowhere, "w")
    assert delivered(core.handle(tokens(nowhere.stream_id, 0, [1]), now=1.1)) == [1]


def test_a_request_that_moved_survives_its_first_worker() -> None:
    core = gateway()
    request = opened(core, on="prefill")
    core.handle(tokens(request.stream_id, 0, [1], worker="prefill"), now=0.0)
    core.handle(Placed(request.key, "decode", 0, Role.DECODE), now=0.1)
    assert core.handle(WorkerDetached("prefill"), now=0.2) == []


def test_a_moves_pause_is_told_in_seconds_and_in_tokens_of_its_pace() -> None:
    core = gateway()
    request = opened(core)
    for index in range(4):
        core.handle(tokens(request.stream_id, index, [7]), now=1.0 + 0.5 * index)
    place(core, request, "w", target="v")
    moved = core.handle(tokens(request.stream_id, 4, [8], worker="v"), now=3.5)
    later = core.handle(tokens(request.stream_id, 5, [9], worker="v"), now=4.0)
    pauses = [p for a in moved if isinstance(a, Deliver) for p in a.pauses]
    assert [(p.seconds, p.num_tokens) for p in pauses] == [(1.0, 2.0)]
    assert not [p for a in later if isinstance(a, Deliver) for p in a.pauses]


def test_another_attempt_is_no_move() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7]), now=1.0)
    core.handle(Lost((request.key,), "gone"), now=2.0)
    again = resubmitted(core, now=9.0, on="v")
    first = core.handle(tokens(again.stream_id, 1, [8], worker="v"), now=10.0)
    assert not [p for a in first if isinstance(a, Deliver) for p in a.pauses]


def test_an_attempt_that_is_named_twice_is_lost_once() -> None:
    core = gateway()
    request = opened(core)
    core.handle(Lost((request.key, request.key), "gone"), now=0.0)
    assert [each.attempt for each in requests_in(core.wake(now=9.0))] == [1]


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
    assert request.attempt == 7
    (fail,) = failures_in(core.handle(Lost((request.key,), "killed"), now=now))
    assert fail.error.code is Code.UNAVAILABLE
    assert "8 times" in fail.error.message
    assert core.num_open == 0


def test_a_failed_computation_is_tried_once_more() -> None:
    core = gateway()
    request = opened(core)
    assert failures_in(core.handle(failure(request.stream_id), now=0.0)) == []
    request = resubmitted(core, now=0.05)
    (fail,) = failures_in(core.handle(failure(request.stream_id), now=1.0))
    assert fail.error.code is Code.INTERNAL
    assert fail.error.message == "no luck"


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


def test_a_request_that_its_worker_dropped_is_run_again() -> None:
    core = gateway()
    request = opened(core)
    core.handle(failure(request.stream_id, FinishReason.CANCELLED), now=0.0)
    assert len(requests_in(core.wake(now=0.05))) == 1


def test_a_token_with_a_bad_end_is_not_shown_and_the_request_run_again() -> None:
    core = gateway()
    request = opened(core)
    bad = tokens(request.stream_id, 0, [7, 8], end=FinishReason.ERROR)
    assert delivered(core.handle(bad, now=0.0)) == [7]
    (again,) = requests_in(core.wake(now=0.05))
    assert again.output_token_ids == (7,)


def test_a_rejection_reaches_the_client_with_code_and_hint() -> None:
    core = gateway()
    request = opened(core)
    rejected = Rejected(request.key, Code.RESOURCE_EXHAUSTED, "full", 3.0)
    (fail,) = failures_in(core.handle(rejected, now=0.0))
    assert (fail.error.code, fail.error.retry_after) == (Code.RESOURCE_EXHAUSTED, 3.0)
    assert core.num_waiting == 0


def test_a_reader_in_mid_answer_does_not_suffer_from_a_full_scheduler() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [1]), now=0.0)
    rejected = Rejected(request.key, Code.RESOURCE_EXHAUSTED, "full", 3.0)
    assert failures_in(core.handle(rejected, now=0.0)) == []
    assert len(requests_in(core.wake(now=0.05))) == 1


def test_a_client_that_leaves_frees_scheduler_and_worker() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [1]), now=0.0)
    assert list(core.handle(Release("r"), now=1.0)) == [
        CancelTokens("w", (request.stream_id,)),
        CancelStream(StreamKey("g", request.stream_id)),
    ]
    assert core.handle(Release("r"), now=1.0) == []


def test_losing_the_scheduler_leaves_running_requests_alone() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7]), now=0.0)
    assert core.handle(SchedulerDisconnected(), now=1.0) == []
    assert delivered(core.handle(tokens(request.stream_id, 1, [8]), now=1.0)) == [8]


def test_a_new_scheduler_is_told_of_all_that_is_open_by_its_old_name() -> None:
    core = gateway()
    request = opened(core)
    core.handle(tokens(request.stream_id, 0, [7]), now=0.0)
    core.handle(SchedulerDisconnected(), now=1.0)
    (again,) = requests_in(core.handle(SchedulerConnected(), now=2.0))
    assert (again.stream_id, again.attempt) == (request.stream_id, 0)
    assert again.output_token_ids == (7,)


def test_what_waits_for_its_next_attempt_is_not_submitted_twice() -> None:
    core = gateway()
    request = opened(core)
    core.handle(Lost((request.key,), "killed"), now=0.0)
    core.handle(SchedulerDisconnected(), now=0.0)
    assert requests_in(core.handle(SchedulerConnected(), now=0.01)) == []
    assert len(requests_in(core.wake(now=0.05))) == 1


def test_a_request_waits_for_a_scheduler_but_not_for_ever() -> None:
    core = gateway(connected=False)
    assert core.handle(submit("early"), now=0.0) == []
    core.handle(submit("late"), now=20.0)
    (fail,) = failures_in(core.wake(now=30.0))
    assert (fail.request_id, fail.error.code) == ("early", Code.UNAVAILABLE)
    (request,) = requests_in(core.handle(SchedulerConnected(), now=31.0))
    assert request.request_id == "late"
    assert core.wake(now=50.0) == []


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


def test_a_request_over_its_deadline_without_a_token_fails() -> None:
    core = gateway()
    request = opened(core)
    actions = core.wake(now=60.0)
    assert CancelStream(request.key) in actions
    assert failures_in(actions)[0].error.code is Code.DEADLINE_EXCEEDED
    assert core.num_open == 0


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
