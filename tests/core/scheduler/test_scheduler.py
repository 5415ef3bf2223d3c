"""The scheduler's core: when and where requests are dispatched, what is explained, who leads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role, UnitLoad
from headway.core.scheduler.events import Elected, SendToGateway, SendToWorker
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import Dispatch, Placed
from tests.fakes.scheduler_text import (
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
    assert (
        SendToGateway("g", Placed(key(1), "p", 0, Role.PREFILL, reason="quiescence", waited_us=1))
        in scheduler.new
    )


def test_a_batch_is_packed_over_the_instances_units() -> None:
    scheduler = make_scheduler()
    scheduler.connect(make_info("p", units=2))
    scheduler.submit(1)
    for stream_id, length in ((2, 60), (3, 50), (4, 30)):
        scheduler.submit(stream_id, length)
    scheduler.serve("p")
    batches = scheduler.dispatches("p")[-1].batches
    assert [(b.unit, [r.stream_id for r in b.requests]) for b in batches] == [(0, [2]), (1, [3, 4])]


def test_a_prompt_waits_until_a_unit_has_kv_room_for_it() -> None:
    scheduler = make_scheduler(kv_watermark=0.1)
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


def test_a_draining_worker_is_given_nothing_new() -> None:
    scheduler = make_scheduler()
    info = make_info("p")
    scheduler.connect(info)
    scheduler.connect(info, draining=True)
    scheduler.submit(1)
    assert scheduler.dispatched("p") == []


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
