"""Staggered Batch Scheduling, Algorithm 1: the adaptive interval."""

from __future__ import annotations

from math import inf, nan

import pytest

from headway.errors import HeadwayError
from headway.policies.dispatch import InstanceLoad, Turn
from headway.policies.dispatch.sbs import SbsParams, StaggeredBatch


def staggered(*worker_ids: str, **params: float) -> StaggeredBatch:
    policy = StaggeredBatch(SbsParams(**{"default_pass_time": 0.3, **params}))  # type: ignore[arg-type]  # fields by name
    for worker_id in worker_ids:
        policy.join(worker_id)
    return policy


def busy(worker_id: str) -> InstanceLoad:
    return InstanceLoad(worker_id, 5, 5, 1, 1, True, True)


def test_the_interval_is_the_mean_pass_time_plus_the_latency_over_the_active_instances() -> None:
    policy = staggered("a", "b", "c")
    policy.ended("a", (), 0.2, now=0.0)
    policy.ended("a", (), 0.4, now=0.0)
    policy.acknowledged(0.06)
    assert policy.mean_pass_time == pytest.approx(0.3)
    assert policy.dispatch_latency == pytest.approx(0.06)
    assert policy.interval == pytest.approx((0.3 + 0.06) / 3)


def test_before_the_first_report_the_profiled_default_stands_in() -> None:
    assert staggered("a", default_pass_time=0.7).interval == pytest.approx(0.7)


def test_the_first_report_replaces_the_default() -> None:
    policy = staggered("a", default_pass_time=0.7)
    policy.ended("a", (), 0.1, now=0.0)
    assert policy.mean_pass_time == pytest.approx(0.1)


def test_the_window_holds_32_pass_times_and_evicts_the_oldest() -> None:
    policy = staggered("a")
    for pass_time in [100.0] + [0.5] * 32:
        policy.ended("a", (), pass_time, now=0.0)
    assert policy.mean_pass_time == pytest.approx(0.5)


def test_latency_is_a_moving_average_of_round_trips() -> None:
    policy = staggered("a")
    for round_trip in [9.0] + [0.01] * 32:
        policy.acknowledged(round_trip)
    assert policy.dispatch_latency == pytest.approx(0.01)


@pytest.mark.parametrize("pass_time", [-0.1, nan, inf, -inf, 3601.0, 1e9])
def test_a_bad_pass_time_is_dropped_and_counted(pass_time: float) -> None:
    policy = staggered("a")
    policy.ended("a", (), 0.2, now=0.0)
    policy.ended("a", (), pass_time, now=0.0)
    assert policy.mean_pass_time == pytest.approx(0.2)
    assert policy.num_bad_times == 1


def test_a_worker_that_stood_still_for_an_hour_does_not_hold_up_the_interval() -> None:
    policy = staggered("a")
    for pass_time in (0.2, 0.2, 3600.0):
        policy.ended("a", (), pass_time, now=0.0)
    assert policy.num_bad_times == 0
    assert policy.mean_pass_time == pytest.approx((0.2 + 0.2 + 100 * 0.2) / 3)


def test_a_bad_pass_time_still_ends_the_pass() -> None:
    policy = staggered("a")
    policy.dispatched(Turn("a", "idle"), 7, now=0.0)
    policy.ended("a", (7,), nan, now=0.1)
    assert [t.worker_id for t in policy.turns([busy("a")], 2, now=1.0)] == ["a"]


def test_a_topology_change_changes_the_interval_at_once() -> None:
    policy = staggered("a")
    policy.join("b")
    assert policy.interval == pytest.approx(0.15)
    policy.join("b")
    assert policy.interval == pytest.approx(0.15)
    policy.leave("a")
    assert policy.interval == pytest.approx(0.3)


def test_without_an_active_instance_nothing_is_dispatched() -> None:
    policy = staggered()
    assert policy.interval == inf
    assert policy.turns([], 5, now=100.0) == []
    assert policy.wakeup([], 5, now=100.0) is None


@pytest.mark.parametrize(
    "params",
    [
        {"default_pass_time": 0.0},
        {"default_pass_time": nan},
        {"window": 0},
        {"watchdog_factor": 0.5},
        {"watchdog_floor": -1.0},
    ],
)
def test_a_parameter_outside_its_range_is_refused(params: dict[str, float]) -> None:
    with pytest.raises(HeadwayError, match="must be"):
        staggered(**params)
