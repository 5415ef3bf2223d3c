"""The scheduler's core: who is dispatched when, and what each request is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role, UnitLoad
from headway.core.scheduler_events import (
    Elected,
    GatewayConnected,
    GatewayGone,
    SendToGateway,
    SendToWorker,
)
from headway.core.scheduler_state import SchedulerSettings
from headway.errors import Code
from headway.messages import CancelStream, Dispatch, Placed, Rejected
from headway.policies.packing.flow_control import FlowControl
from tests.core.scheduler_harness import (
    SchedulerHarness,
    idle_loads,
    key,
    make_info,
    make_request,
    short_pass,
)


def make_scheduler(**fields: object) -> SchedulerHarness:
    return SchedulerHarness(replace(short_pass(), **fields))  # type: ignore[arg-type]  # fields by name


# --- dispatch -----------------------------------------------------------------------------


def test_a_request_is_dispatched_at_once_to_an_idle_worker() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    request = scheduler.submit(1)
    sent = [a for a in scheduler.new if isinstance(a, SendToWorker)]
    assert len(sent) == 1
    assert isinstance(sent[0].message, Dispatch)
    assert sent[0].message.batches[0].requests == (request,)
    assert SendToGateway("g", Placed(key(1), "p", 0, Role.PREFILL)) in scheduler.new


def test_requests_behind_a_pass_are_gathered_and_go_together_at_its_end() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    for stream_id in (1, 2, 3):
        scheduler.submit(stream_id)
    assert scheduler.dispatched("p") == [1]
    scheduler.serve("p")
    assert scheduler.dispatched("p") == [1, 2, 3]
    assert len(scheduler.dispatches("p")) == 2


def test_instances_are_dispatched_to_one_interval_apart() -> None:
    scheduler = make_scheduler()
    for worker_id in ("p1", "p2"):
        scheduler.connect(make_info(worker_id))
    scheduler.submit(1)
    scheduler.submit(2)
    for stream_id in range(3, 9):
        scheduler.submit(stream_id)
    assert (scheduler.dispatched("p1"), scheduler.dispatched("p2")) == ([1], [2])
    scheduler.accept("p1")
    scheduler.accept("p2")
    scheduler.end_forward("p1", after=0.02)  # T̄ is 0.1: the interval is 0.05
    assert scheduler.dispatched("p1") == [1]
    scheduler.wait(0.03)
    assert scheduler.dispatched("p1") == [1, 3, 4, 5, 6, 7, 8]


def test_a_batch_is_packed_over_the_instances_units() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", units=2))
    scheduler.submit(1)
    for stream_id, length in ((2, 60), (3, 50), (4, 30)):
        scheduler.submit(stream_id, length)
    scheduler.serve("p")
    batches = scheduler.dispatches("p")[-1].batches
    assert [(b.unit, [r.stream_id for r in b.requests]) for b in batches] == [(0, [2]), (1, [3, 4])]


def test_what_does_not_fit_the_chunk_waits_for_the_next_pass() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", chunk=100))
    scheduler.submit(1)
    for stream_id in (2, 3, 4):
        scheduler.submit(stream_id, 60)
    scheduler.serve("p")
    assert scheduler.dispatched("p") == [1, 2, 3]
    scheduler.serve("p", queued=20)
    assert scheduler.dispatched("p") == [1, 2, 3, 4]


def test_leftover_chunks_are_topped_up_at_the_end_of_a_pass() -> None:
    scheduler = make_scheduler()
    for worker_id in ("p1", "p2"):
        scheduler.connect(make_info(worker_id, chunk=100))
    scheduler.submit(1, 150)
    scheduler.submit(2, 150)
    scheduler.submit(3)
    scheduler.submit(4)
    scheduler.accept("p1")
    scheduler.end_forward("p1", queued=50, after=0.01)
    assert scheduler.dispatched("p1") == [1, 3, 4]
    assert scheduler.decisions()[-1].rule == "top-up"


def test_a_prompt_waits_until_a_unit_has_kv_room_for_it() -> None:
    scheduler = make_scheduler()
    info = make_info("p", blocks=20, block_size=10, chunk=500)
    scheduler.connect(info, loads=(UnitLoad(0, 0, 0, 100, 10),))
    scheduler.submit(1, 90)  # 9 blocks and the watermark's 2
    assert scheduler.dispatched("p") == []
    scheduler.end_forward("p", dispatch_ids=(), pass_time=0.0, free=11)
    assert scheduler.dispatched("p") == [1]


def test_kv_blocks_promised_to_a_dispatch_are_not_promised_again() -> None:
    scheduler = make_scheduler(kv_watermark=0.0)
    scheduler.connect(make_info("p", blocks=10, block_size=10, chunk=500))
    scheduler.submit(1, 60)
    scheduler.submit(2, 50)
    scheduler.accept("p")
    scheduler.end_forward("p", free=4, after=0.1)
    assert scheduler.dispatched("p") == [1]
    scheduler.end_forward("p", dispatch_ids=(), pass_time=0.0, free=10, after=0.1)
    assert scheduler.dispatched("p") == [1, 2]


def test_dispatch_ids_are_unique_over_leaders() -> None:
    scheduler = make_scheduler()
    scheduler.post(Elected(7, ()))
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    assert scheduler.dispatches("p")[0].dispatch_id == 7 << 32 | 1


def test_requests_go_to_workers_of_their_model() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", model="m"))
    scheduler.connect(make_info("q", model="n"))
    scheduler.submit(1, model="n")
    scheduler.submit(2, model="m")
    assert (scheduler.dispatched("p"), scheduler.dispatched("q")) == ([2], [1])


def test_decode_workers_are_never_dispatched_to() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("d", Role.DECODE))
    scheduler.submit(1)
    scheduler.wait(10.0)
    assert scheduler.dispatched("d") == []
    assert scheduler.core.status().pools[0].num_active == 0


def test_requests_wait_for_a_first_prefill_worker() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1)
    scheduler.wait(5.0)
    scheduler.connect(make_info("p"))
    assert scheduler.dispatched("p") == [1]


def test_a_draining_worker_is_given_nothing_new() -> None:
    scheduler = make_scheduler()
    info = make_info("p")
    scheduler.connect(info)
    scheduler.connect(info, draining=True)
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []


def test_the_watchdog_is_counted_and_noted_and_the_worker_dispatched_to_again() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1, 100)
    scheduler.submit(2, 100)
    scheduler.wait(0.49)
    assert scheduler.dispatched("p") == [1]
    scheduler.wait(0.02)
    assert scheduler.dispatched("p") == [1, 2]
    assert scheduler.notes() == ["watchdog_expired"]
    assert scheduler.core.status().counters.num_watchdogs == 1
    assert scheduler.decisions()[-1].rule == "fixed-interval"


def test_immediate_dispatch_holds_nothing_back() -> None:
    scheduler = make_scheduler(dispatch="immediate", dispatch_params={}, packing="round-robin")
    for worker_id in ("p1", "p2"):
        scheduler.connect(make_info(worker_id))
    for stream_id in range(1, 6):
        scheduler.submit(stream_id, 90)
    assert (scheduler.dispatched("p1"), scheduler.dispatched("p2")) == ([1, 3, 5], [2, 4])


def test_a_bad_pass_time_is_noted_and_counted() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.serve("p", pass_time=float("nan"))
    assert "bad_pass_time" in scheduler.notes()
    assert scheduler.core.status().pools[0].num_bad_times == 1
    assert scheduler.core.status().pools[0].mean_pass_time == pytest.approx(0.1)


def test_decode_passes_do_not_count_as_prefill_passes() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("u", Role.UNIFIED))
    scheduler.connect(make_info("d", Role.DECODE))
    scheduler.submit(1)
    scheduler.serve("u", pass_time=0.3)
    scheduler.end_forward("u", pass_time=0.001, dispatch_ids=(), running=1)
    scheduler.end_forward("d", pass_time=0.001, dispatch_ids=())
    assert scheduler.core.status().pools[0].mean_pass_time == pytest.approx(0.3)


def test_the_measured_round_trip_is_part_of_the_interval() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.now += 0.02
    scheduler.accept("p")
    pool = scheduler.core.status().pools[0]
    assert pool.dispatch_latency == pytest.approx(0.02)
    assert pool.interval == pytest.approx(0.12)


# --- admission ----------------------------------------------------------------------------


def refusal(scheduler: SchedulerHarness) -> Rejected:
    assert len(scheduler.rejected()) == 1
    return scheduler.rejected()[0]


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", model="m"))
    scheduler.submit(1, model="x")
    assert refusal(scheduler).code is Code.NOT_FOUND
    assert refusal(scheduler).message == "model is 'x'; the models served are: m"


def test_a_request_over_the_context_is_refused_with_value_and_limit() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("u", Role.UNIFIED, max_len=100, blocks=50))
    scheduler.submit(1, 90, max_tokens=11)
    assert refusal(scheduler).code is Code.INVALID_ARGUMENT
    assert "together 101; the limit is 100" in refusal(scheduler).message


def test_a_request_over_every_pool_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", blocks=10))
    scheduler.connect(make_info("d", Role.DECODE, blocks=100))
    scheduler.submit(1, 100)
    assert refusal(scheduler).code is Code.INVALID_ARGUMENT
    assert "largest prefill instance holds 100" in refusal(scheduler).message


def test_a_request_goes_to_the_worker_that_could_hold_it() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("u1", Role.UNIFIED, max_len=50))
    scheduler.connect(make_info("u2", Role.UNIFIED, max_len=500))
    scheduler.submit(1, 90)
    assert scheduler.dispatched("u2") == [1]


def test_a_full_window_refuses_with_a_hint_when_to_try_again() -> None:
    scheduler = make_scheduler(max_waiting=2)
    scheduler.connect(make_info("p", chunk=100))
    for stream_id in range(1, 5):
        scheduler.submit(stream_id, 300)
    assert refusal(scheduler).key == key(4)
    assert refusal(scheduler).code is Code.RESOURCE_EXHAUSTED
    assert refusal(scheduler).retry_after == pytest.approx(1.0)  # 600 tokens at 1000 a second


def test_the_hint_follows_the_measured_velocity() -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.connect(make_info("p", chunk=100, blocks=1000))
    scheduler.submit(1, 500)
    scheduler.submit(2, 1000)
    scheduler.serve("p", queued=400, pass_time=0.5)  # 100 tokens in 0.5 s
    scheduler.submit(3)
    assert scheduler.rejected()[-1].retry_after == pytest.approx(1000 / 200)


def test_a_later_attempt_is_never_refused_for_want_of_room() -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.submit(1)
    scheduler.submit(2, attempt=1)
    assert scheduler.rejected() == []


def test_flow_control_throttles_and_then_refuses() -> None:
    scheduler = make_scheduler(flow_control=FlowControl(num_cycles=2))
    info = make_info("p", blocks=20)
    scheduler.connect(info, loads=(UnitLoad(0, 0, 0, 150, 5),))
    scheduler.submit(1, 150)
    scheduler.wait(0.25)
    assert scheduler.core.status().pools[0].flow_level == "throttled"
    scheduler.submit(2)
    assert scheduler.core.status().pools[0].num_at_door == 1
    scheduler.wait(0.3)
    scheduler.submit(3)
    assert refusal(scheduler).key == key(3)
    assert refusal(scheduler).code is Code.RESOURCE_EXHAUSTED
    assert refusal(scheduler).retry_after > 0
    scheduler.end_forward("p", dispatch_ids=(), pass_time=0.0, after=0.1)
    assert scheduler.dispatched("p") == [1]


def test_flow_control_applies_without_any_prefill_worker() -> None:
    scheduler = make_scheduler(max_waiting=1)
    scheduler.submit(1)
    scheduler.submit(2)
    assert refusal(scheduler).code is Code.RESOURCE_EXHAUSTED


def test_a_deadline_that_passes_in_the_window_is_told() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, deadline_at=scheduler.now + 0.5)
    scheduler.wait(0.49)
    assert scheduler.rejected() == []
    scheduler.wait(0.02)
    assert refusal(scheduler).code is Code.DEADLINE_EXCEEDED
    scheduler.connect(make_info("p"))
    assert scheduler.dispatched("p") == []


def test_a_deadline_that_has_passed_is_refused_at_once() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, deadline_at=scheduler.now - 0.5)
    assert refusal(scheduler).code is Code.DEADLINE_EXCEEDED


# --- repeats, cancels, gateways -----------------------------------------------------------


def test_a_repeated_submission_is_ignored_while_it_waits_and_while_it_runs() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1)
    scheduler.submit(1)
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.serve("p")
    assert scheduler.dispatched("p") == [1]


def test_a_finished_request_is_not_run_again() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.serve("p", finished=(1,))
    assert scheduler.core.status().num_tracked == 0
    scheduler.submit(1)
    assert scheduler.dispatched("p") == [1]


def test_ended_requests_are_remembered_in_bounds() -> None:
    scheduler = make_scheduler(num_keys_remembered=2)
    scheduler.connect(make_info("p"))
    for stream_id in (1, 2, 3):
        scheduler.submit(stream_id)
        scheduler.serve("p", finished=(stream_id,))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == [1, 2, 3, 1]


def test_a_refused_request_is_refused_again() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1, model="x")
    scheduler.submit(1, model="x")
    assert [r.code for r in scheduler.rejected()] == [Code.NOT_FOUND] * 2


def test_a_new_attempt_replaces_the_older_one() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1, request_id="r")
    scheduler.submit(2, request_id="r", attempt=1)
    assert scheduler.cancelled("p") == [1]
    scheduler.submit(3, request_id="r", attempt=2)
    scheduler.serve("p", finished=(1,))
    assert scheduler.dispatched("p") == [1, 3]


def test_an_older_attempt_that_comes_late_is_not_run() -> None:
    scheduler = make_scheduler()
    scheduler.submit(2, request_id="r", attempt=1)
    scheduler.submit(1, request_id="r", attempt=0)
    scheduler.connect(make_info("p"))
    assert scheduler.dispatched("p") == [2]


def test_a_cancel_before_dispatch_takes_the_request_out_of_the_window() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1)
    scheduler.post(CancelStream(key(1)))
    scheduler.connect(make_info("p"))
    assert scheduler.dispatched("p") == []


def test_a_cancel_after_dispatch_goes_to_the_worker() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.post(CancelStream(key(1)))
    assert scheduler.cancelled("p") == [1]


def test_a_cancel_that_comes_before_its_request_is_kept() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.post(CancelStream(key(1)))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []


def test_requests_of_a_gateway_that_stays_away_are_cancelled() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.submit(2)
    scheduler.post(GatewayGone("g"))
    scheduler.wait(4.9)
    assert scheduler.cancelled("p") == []
    scheduler.wait(0.2)
    assert 1 in scheduler.cancelled("p")


def test_requests_of_a_gateway_that_comes_back_in_time_go_on() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.post(GatewayGone("g"))
    scheduler.post(GatewayConnected("g"), after=3.0)
    scheduler.wait(10.0)
    assert scheduler.cancelled("p") == []


# --- explanations -------------------------------------------------------------------------


def test_a_decision_says_who_was_considered_what_each_scored_and_why() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", units=2))
    scheduler.submit(1, 60)
    decision = scheduler.core.decisions[-1]
    assert (decision.question, decision.rule, decision.num_left) == ("dispatch", "quiescence", 0)
    assert [(c.unit.unit, c.load) for c in decision.considered] == [
        (0, (100, 100)),
        (1, (100, 100)),
    ]
    assert [(c.request_id, c.unit.unit, c.score) for c in decision.chosen] == [("r1", 0, (40,))]


def test_only_the_last_decisions_are_kept() -> None:
    scheduler = make_scheduler(num_decisions_kept=3)
    scheduler.connect(make_info("p"))
    for stream_id in range(1, 9):
        scheduler.submit(stream_id)
        scheduler.serve("p", finished=(stream_id,))
    assert [d.chosen[0].key.stream_id for d in scheduler.core.decisions] == [6, 7, 8]


# --- leadership ---------------------------------------------------------------------------


def test_nothing_is_dispatched_before_election() -> None:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []
    scheduler.post(Elected(1, ("p",)))
    assert scheduler.dispatched("p") == [1]


def test_a_new_leader_waits_for_the_snapshots_of_all_members() -> None:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.post(Elected(1, ("p", "q")))
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []
    scheduler.connect(make_info("q"))
    assert scheduler.dispatched("p") == [1]


def test_a_new_leader_waits_a_second_at_most() -> None:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.post(Elected(1, ("p", "q")))
    scheduler.connect(make_info("p"))
    scheduler.submit(1)
    scheduler.wait(0.99)
    assert scheduler.dispatched("p") == []
    scheduler.wait(0.02)
    assert scheduler.dispatched("p") == [1]
    assert scheduler.notes() == ["worker_not_heard_in_grace"]


def test_unknown_models_are_judged_when_the_grace_is_over() -> None:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.post(Elected(1, ("p", "q")))
    scheduler.connect(make_info("p", model="m"))
    scheduler.submit(1, model="n")
    scheduler.submit(2, model="x")
    scheduler.connect(make_info("q", model="n"))
    assert [r.key for r in scheduler.rejected()] == [key(2)]
    assert scheduler.dispatched("q") == [1]


def test_messages_of_a_worker_that_is_not_connected_are_ignored() -> None:
    scheduler = make_scheduler()
    scheduler.infos["p"] = make_info("p")
    scheduler.end_forward("p", finished=(1,))
    assert scheduler.log == []


def test_idle_loads_of_a_repeated_snapshot_replace_the_old_ones() -> None:
    scheduler = make_scheduler()
    info = make_info("p", blocks=20)
    scheduler.connect(info, loads=(UnitLoad(0, 0, 0, 0, 0),))
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []
    scheduler.connect(info, loads=idle_loads(info))
    assert scheduler.dispatched("p") == [1]


def test_default_settings_name_the_papers_policies() -> None:
    settings = SchedulerSettings()
    assert (settings.dispatch, settings.packing, settings.placement) == ("sbs", "pbaa", "iqr-lex")


def test_a_worker_unknown_to_the_core_cannot_end_anything() -> None:
    scheduler = make_scheduler()
    request = make_request(1)
    scheduler.post(request)
    scheduler.infos["x"] = make_info("x")
    scheduler.end_forward("x", finished=(1,))
    assert scheduler.core.status().num_tracked == 1
