"""The scheduler's core: a worker that drains, or serves something else, is emptied."""

from __future__ import annotations

from typing import Any

from headway.cluster import Role
from headway.core.scheduler.events import WorkerReported
from headway.core.scheduler.settings import MoveLimits
from headway.messages import GiveBack, HandedBack, Handoff, HandoffResult, HeldRequest
from tests.fakes.scheduler_text import (
    SchedulerHarness,
    decoding_cluster,
    key,
    make_info,
    short_pass,
)


def make_cluster(num_running: int = 3, **fields: Any) -> SchedulerHarness:
    """Requests from 1 on run on d0."""
    chosen = {"placement": "least-kv", **fields}
    scheduler = decoding_cluster("d0", running=num_running, **chosen)
    scheduler.wait(1.0)
    return scheduler


def held(number: int, num_tokens: int = 20) -> HeldRequest:
    return HeldRequest(key(number), f"r{number}", 0, num_tokens, False, decoding=True)


def drain(scheduler: SchedulerHarness, worker_id: str, *numbers: int) -> None:
    info = scheduler.infos[worker_id]
    scheduler.connect(info, *(held(number) for number in numbers), draining=True)


def moves(scheduler: SchedulerHarness, worker_id: str = "d0") -> list[tuple[int, str]]:
    return [(o.key.stream_id, o.target_worker_id) for o in scheduler.orders(worker_id, Handoff)]


def given_back(scheduler: SchedulerHarness, worker_id: str) -> list[int]:
    return [k.stream_id for order in scheduler.orders(worker_id, GiveBack) for k in order.keys]


# --- what decodes ---------------------------------------------------------------------


def test_what_runs_on_a_worker_that_drains_moves_to_another() -> None:
    scheduler = make_cluster()
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0", 1, 2, 3)
    assert sorted(moves(scheduler)) == [(1, "d1"), (2, "d1"), (3, "d1")]
    assert scheduler.decisions()[-1].question == "drain"
    for order in scheduler.orders("d0", Handoff):
        scheduler.post(WorkerReported("d0", _result(order)))
    assert sorted(scheduler.placed()[-3:]) == [(1, "d1"), (2, "d1"), (3, "d1")]
    assert scheduler.lost() == []


def _result(order: Handoff, *, ok: bool = True) -> HandoffResult:
    return HandoffResult(order.key, order.target_worker_id, order.target_unit, ok)


def test_a_link_takes_so_many_at_a_time_and_then_the_next() -> None:
    scheduler = make_cluster(num_running=5, moves=MoveLimits(per_link=2))
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0", 1, 2, 3, 4, 5)
    assert len(moves(scheduler)) == 2
    scheduler.post(WorkerReported("d0", _result(scheduler.orders("d0", Handoff)[0])))
    assert len(moves(scheduler)) == 3


def test_a_target_is_sent_no_more_than_its_link_takes() -> None:
    scheduler = make_cluster(num_running=2, moves=MoveLimits(per_link=2))
    scheduler.connect(make_info("d2", Role.DECODE, blocks=1))  # too small for any of these
    for number in (3, 4):
        scheduler.submit(number)
        scheduler.prefill("p", number)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0", 1, 2)
    assert len(moves(scheduler)) == 2
    assert {target for _, target in moves(scheduler)} == {"d1"}


def test_without_room_elsewhere_they_are_waited_for_and_move_when_there_is_some() -> None:
    scheduler = make_cluster()
    drain(scheduler, "d0", 1, 2, 3)
    scheduler.wait(5.0)
    assert moves(scheduler) == []
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    assert len(moves(scheduler)) == 3


def test_a_move_that_fails_is_tried_again_after_a_rest() -> None:
    scheduler = make_cluster(num_running=1)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0", 1)
    scheduler.handed_off("d0", ok=False)
    assert len(moves(scheduler)) == 1
    scheduler.wait(scheduler.core.settings.moves.rest + 0.01)
    assert moves(scheduler) == [(1, "d1"), (1, "d1")]
    assert scheduler.lost() == []


def test_those_that_run_longest_go_first() -> None:
    scheduler = make_cluster(num_running=0, moves=MoveLimits(per_link=1))
    for number, max_tokens in ((1, 5), (2, 500), (3, 50)):
        scheduler.submit(number, max_tokens=max_tokens)
        scheduler.prefill("p", number)
        scheduler.handed_off("p")
    scheduler.wait(1.0)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0", 1, 2, 3)
    assert moves(scheduler) == [(2, "d1")]


def test_a_request_that_lands_on_a_worker_that_drains_moves_on() -> None:
    scheduler = make_cluster(num_running=0)
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    drain(scheduler, "d0")
    scheduler.handed_off("p")
    assert moves(scheduler) == [(1, "d1")]


def test_prefilled_on_a_worker_that_does_both_it_is_told_of_and_moves() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("u0", Role.UNIFIED, blocks=1000))
    scheduler.submit(1)
    scheduler.accept("u0")
    scheduler.connect(make_info("u1", Role.UNIFIED, blocks=1000))
    still = HeldRequest(key(1), "r1", 0, 10, False)
    scheduler.connect(scheduler.infos["u0"], still, draining=True)
    assert moves(scheduler, "u0") == []
    scheduler.end_forward("u0", prefilled=(held(1, 11),))
    assert moves(scheduler, "u0") == [(1, "u1")]


# --- what has not begun ---------------------------------------------------------------


def prefilling(**fields: Any) -> SchedulerHarness:
    """Requests 1 and 2 were dispatched to p0, which drains."""
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p0"))
    scheduler.connect(make_info("d", Role.DECODE, blocks=1000))
    scheduler.submit(1)
    scheduler.submit(2)
    scheduler.wait(1.0)
    scheduler.accept("p0")
    assert scheduler.dispatched("p0") == [1, 2]
    return scheduler


def drain_prefill(scheduler: SchedulerHarness) -> None:
    waiting = (HeldRequest(key(n), f"r{n}", 0, 10, False) for n in (1, 2))
    scheduler.connect(scheduler.infos["p0"], *waiting, draining=True)


def test_prompts_that_have_not_begun_are_called_back_and_go_to_another() -> None:
    scheduler = prefilling()
    scheduler.connect(make_info("p1"))
    drain_prefill(scheduler)
    assert given_back(scheduler, "p0") == [1, 2]
    scheduler.post(WorkerReported("p0", HandedBack((key(2),))))  # it had begun the other one
    scheduler.wait(1.0)
    assert scheduler.dispatched("p1") == [2]
    assert scheduler.lost() == []
    assert scheduler.placed()[-1] == (2, "p1")


def test_they_are_asked_for_once() -> None:
    scheduler = prefilling()
    scheduler.connect(make_info("p1"))
    drain_prefill(scheduler)
    scheduler.end_forward("p0", queued=20)
    scheduler.wait(1.0)
    assert given_back(scheduler, "p0") == [1, 2]


def test_they_stay_while_nobody_else_prefills() -> None:
    scheduler = prefilling()
    drain_prefill(scheduler)
    assert given_back(scheduler, "p0") == []
    scheduler.connect(make_info("p1"))
    assert given_back(scheduler, "p0") == [1, 2]


def test_what_was_handed_back_is_no_work_that_the_worker_did() -> None:
    scheduler = prefilling()
    scheduler.connect(make_info("p1"))
    drain_prefill(scheduler)
    scheduler.post(WorkerReported("p0", HandedBack((key(1), key(2)))))
    (unit,) = (u for u in scheduler.core.matrix() if u.unit.worker_id == "p0")
    assert unit.capacity == 100


def test_one_that_only_a_snapshot_told_of_goes_back_to_its_gateway() -> None:
    scheduler = SchedulerHarness(short_pass())
    unknown = HeldRequest(key(7), "r7", 0, 10, False)
    scheduler.connect(make_info("p1"))
    scheduler.connect(make_info("p0"), unknown, draining=True)
    assert given_back(scheduler, "p0") == [7]
    scheduler.post(WorkerReported("p0", HandedBack((key(7),))))
    assert scheduler.lost() == [7]


# --- another role ---------------------------------------------------------------------


def test_a_decoder_that_becomes_a_prefiller_is_emptied_and_given_prompts() -> None:
    scheduler = make_cluster(num_running=1)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    scheduler.connect(make_info("d0", Role.PREFILL, blocks=1000), held(1))
    assert moves(scheduler) == [(1, "d1")]
    assert scheduler.lost() == []
    scheduler.handed_off("d0")
    scheduler.kill("p")
    scheduler.submit(2)
    scheduler.wait(1.0)
    assert scheduler.dispatched("d0") == [2]


def test_a_prefiller_that_becomes_a_decoder_keeps_what_it_has_prefilled() -> None:
    scheduler = SchedulerHarness(short_pass())
    scheduler.connect(make_info("p0"))
    scheduler.connect(make_info("p1"))
    scheduler.submit(1)
    scheduler.wait(1.0)
    worker_id = "p0" if scheduler.dispatched("p0") else "p1"
    scheduler.prefill(worker_id, 1)
    assert scheduler.core.status().num_awaiting_decode == 1  # nobody decodes
    scheduler.connect(make_info(worker_id, Role.DECODE), held(1, 11))
    assert scheduler.core.status().num_awaiting_decode == 0
    assert moves(scheduler, worker_id) == []
    scheduler.end_forward(worker_id, finished=(1,))
    assert scheduler.core.status().num_tracked == 0


def test_a_decoder_that_becomes_convertible_keeps_its_requests() -> None:
    scheduler = make_cluster(num_running=1)
    scheduler.connect(make_info("d1", Role.DECODE, blocks=1000))
    scheduler.connect(make_info("d0", Role.CONVERTIBLE, blocks=1000), held(1))
    assert moves(scheduler) == []
    assert scheduler.lost() == []
