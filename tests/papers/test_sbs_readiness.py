"""Staggered Batch Scheduling, section 4.1.2: when an instance is dispatched to."""

from __future__ import annotations

import pytest

from headway.policies.dispatch import InstanceLoad, Turn
from headway.policies.dispatch.sbs import TOP_UP, SbsParams, StaggeredBatch

PASS = 0.2  # T̄; with two instances the interval is 0.1


def load(
    worker_id: str, depth: int = 5, *, queued: int = 0, capacity: bool = True, room: bool = True
) -> InstanceLoad:
    return InstanceLoad(worker_id, depth, queued, 1, 1, capacity, room)


def make_policy(*worker_ids: str, **params: float) -> StaggeredBatch:
    policy = StaggeredBatch(SbsParams(default_pass_time=PASS, **params))  # type: ignore[arg-type]  # fields by name
    for worker_id in worker_ids or ("a", "b"):
        policy.join(worker_id)
    return policy


def give(policy: StaggeredBatch, worker_id: str, dispatch_id: int, *, now: float) -> None:
    policy.dispatched(Turn(worker_id, "end-forward"), dispatch_id, now=now)


def whose(policy: StaggeredBatch, *loads: InstanceLoad, waiting: int = 5, now: float) -> list[str]:
    return [turn.worker_id for turn in policy.turns(loads, waiting, now=now)]


def test_the_interval_must_have_elapsed() -> None:
    policy = make_policy()
    give(policy, "a", 1, now=10.0)
    assert whose(policy, load("a"), load("b"), now=10.09) == []
    assert policy.wakeup([load("a"), load("b")], 5, now=10.09) == pytest.approx(10.1)
    assert whose(policy, load("a"), load("b"), now=10.1) == ["b"]


def test_the_instance_must_be_ready() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    assert whose(policy, load("a"), now=10.5) == []


def test_an_end_forward_of_the_last_dispatch_makes_ready() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    policy.ended("a", (1,), PASS, now=10.2)
    assert whose(policy, load("a"), now=10.21) == ["a"]


def test_a_reported_task_depth_of_zero_makes_ready() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    turns = policy.turns([load("a", depth=0)], 5, now=10.3)
    assert [(t.worker_id, t.rule) for t in turns] == [("a", "quiescence")]


def test_the_watchdog_makes_ready_after_five_mean_pass_times() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    assert policy.expire(now=10.99) == []
    assert policy.wakeup([load("a")], 5, now=10.99) == pytest.approx(11.0)
    expired = policy.expire(now=11.0)
    assert [(e.worker_id, e.dispatch_id, e.waited) for e in expired] == [("a", 1, 1.0)]
    assert [t.rule for t in policy.turns([load("a")], 5, now=11.0)] == ["fixed-interval"]


def test_the_watchdog_has_a_floor_where_passes_are_very_short() -> None:
    policy = make_policy("a", watchdog_floor=3.0)
    give(policy, "a", 1, now=10.0)
    assert policy.expire(now=12.9) == []
    assert len(policy.expire(now=13.0)) == 1


def test_the_watchdog_expires_once_for_each_dispatch() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    assert len(policy.expire(now=11.0)) == 1
    assert policy.expire(now=50.0) == []
    give(policy, "a", 2, now=50.0)
    assert len(policy.expire(now=51.0)) == 1


def test_without_end_forwards_the_instance_is_dispatched_to_at_a_fixed_interval() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    policy.expire(now=11.0)
    give(policy, "a", 2, now=11.0)
    assert whose(policy, load("a"), now=11.19) == []
    assert policy.wakeup([load("a")], 5, now=11.19) == pytest.approx(11.2)
    assert whose(policy, load("a"), now=11.2) == ["a"]


def test_an_end_forward_ends_the_fixed_interval() -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    policy.expire(now=11.0)
    give(policy, "a", 2, now=11.0)
    policy.ended("a", (1,), PASS, now=11.1)
    assert whose(policy, load("a"), now=11.5) == []
    policy.ended("a", (2,), PASS, now=11.6)
    assert whose(policy, load("a"), now=11.6) == ["a"]


@pytest.mark.parametrize("is_late", [True, False])
def test_a_late_or_duplicate_end_forward_does_not_release_again(is_late: bool) -> None:
    policy = make_policy("a")
    give(policy, "a", 1, now=10.0)
    if is_late:
        policy.expire(now=11.0)
    else:
        policy.ended("a", (1,), PASS, now=11.0)
    give(policy, "a", 2, now=11.0)
    policy.ended("a", (1,), PASS, now=11.3)
    assert whose(policy, load("a"), now=11.9) == []


def test_instances_take_turns() -> None:
    policy = make_policy("a", "b", "c")
    order, now = [], 10.0
    for dispatch_id in range(1, 7):
        now += 1.0
        turn = policy.turns([load("a"), load("b"), load("c")], 5, now=now)[0]
        order.append(turn.worker_id)
        policy.dispatched(turn, dispatch_id, now=now)
        policy.ended(turn.worker_id, (dispatch_id,), PASS, now=now + 0.1)
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_an_instance_that_is_not_ready_does_not_block_the_next() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    give(policy, "b", 2, now=10.1)
    policy.ended("b", (2,), PASS, now=10.3)
    assert whose(policy, load("a"), load("b"), now=10.4) == ["b"]


def test_an_instance_that_the_watchdog_gave_up_comes_last() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    policy.expire(now=11.0)
    give(policy, "b", 2, now=11.0)
    policy.ended("b", (2,), PASS, now=11.1)
    assert whose(policy, load("a"), load("b"), now=12.0) == ["b", "a"]


@pytest.mark.parametrize("fields", [{"capacity": False}, {"room": False}])
def test_an_instance_without_capacity_or_kv_room_is_passed_over(fields: dict[str, bool]) -> None:
    policy = make_policy("a", "b")
    assert whose(policy, load("a", **fields), load("b"), now=10.0) == ["b"]


def test_an_idle_instance_takes_a_lone_request_at_once() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    turns = policy.turns([load("a"), load("b", depth=0)], 1, now=10.01)
    assert [(t.worker_id, t.rule) for t in turns] == [("b", "idle")]


def test_an_idle_instance_waits_for_the_interval_while_there_is_load() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    assert whose(policy, load("a"), load("b", depth=0), waiting=2, now=10.01) == []


def test_nothing_is_held_back_while_every_instance_is_idle() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    policy.ended("a", (1,), PASS, now=10.01)
    assert whose(policy, load("a", 0), load("b", 0), waiting=9, now=10.01) == ["b", "a"]


def test_leftover_chunks_are_topped_up_at_end_forward_without_waiting() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    policy.ended("a", (1,), PASS, now=10.05)
    turns = policy.turns([load("a", queued=50), load("b")], 5, now=10.05)
    assert [(t.worker_id, t.rule) for t in turns] == [("a", TOP_UP)]


def test_a_top_up_comes_only_with_an_end_forward() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    policy.ended("a", (1,), PASS, now=10.05)
    assert whose(policy, load("a", queued=50), load("b"), now=10.06) == []


def test_a_top_up_does_not_put_off_the_others_turns() -> None:
    policy = make_policy("a", "b")
    give(policy, "a", 1, now=10.0)
    policy.ended("a", (1,), PASS, now=10.05)
    policy.dispatched(Turn("a", TOP_UP), 2, now=10.05)
    assert whose(policy, load("a"), load("b"), now=10.1) == ["b"]


def test_a_turn_that_fits_nobody_is_tried_again_after_an_interval() -> None:
    policy = make_policy("a", "b")
    turn = policy.turns([load("a")], 5, now=10.0)[0]
    policy.passed(turn, now=10.0)
    assert whose(policy, load("a"), now=10.05) == []
    assert policy.wakeup([load("a")], 5, now=10.05) == pytest.approx(10.1)
