"""The scheduler's core: running requests that move, and what becomes of a move that fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from headway.cluster import Role, UnitLoad
from headway.core.scheduler.events import WorkerReported
from headway.messages import (
    CancelStream,
    EndForward,
    Handoff,
    HeldRequest,
    LoadReport,
    RunningRequests,
)
from headway.service_class import ServiceClass, Standing
from tests.fakes.scheduler_text import SchedulerHarness, decoding_cluster, key, make_info


def make_cluster(
    standings: Mapping[int, Standing] = MappingProxyType({}), **fields: Any
) -> SchedulerHarness:
    """Two decode workers; requests 1 to 3 run on d0."""
    chosen = {"rescheduling": "star", "placement": "least-kv", **fields}
    return decoding_cluster("d0", "d1", running=3, standings=standings, **chosen)


def report(
    scheduler: SchedulerHarness, worker_id: str, *, lost_tokens: int = 0, **tokens: int
) -> None:
    numbers = [int(name[1:]) for name in tokens]
    unit = RunningRequests(
        0,
        tuple(key(n) for n in numbers),
        tuple(tokens.values()),
        (500.0,) * len(numbers),
        (),
        lost_tokens,
    )
    scheduler.post(WorkerReported(worker_id, LoadReport((unit,))))


def moves(scheduler: SchedulerHarness) -> list[tuple[int, str]]:
    return [(o.key.stream_id, o.target_worker_id) for o in scheduler.orders("d0", Handoff)]


def unbalanced(**fields: Any) -> SchedulerHarness:
    """… after the first decision."""
    scheduler = make_cluster({}, **fields)
    report(scheduler, "d0", r1=900, r2=800, r3=700)
    report(scheduler, "d1")
    scheduler.wait(6.0)
    return scheduler


def test_a_running_request_moves_to_the_unit_with_less_load() -> None:
    scheduler = unbalanced()
    assert moves(scheduler) == [(1, "d1")]
    assert scheduler.decisions()[-1].question == "rescheduling"


def test_a_prefillers_empty_unit_does_not_lower_the_mean_load() -> None:
    scheduler = make_cluster()
    scheduler.submit(4)
    scheduler.prefill("p", 4)
    scheduler.handed_off("p")
    report(scheduler, "p")
    report(scheduler, "d0", r1=900, r2=800, r3=700)
    report(scheduler, "d1", r4=800)
    scheduler.wait(6.0)
    assert moves(scheduler), "d1 is under the mean of the two"


def test_who_yields_by_its_class_moves_before_those_whom_a_reader_waits_for() -> None:
    batch = Standing(service=ServiceClass("batch", yields=True))
    scheduler = make_cluster({2: batch})
    report(scheduler, "d0", r1=900, r2=800, r3=700)
    report(scheduler, "d1")
    scheduler.wait(6.0)
    assert moves(scheduler) == [(2, "d1")]


def test_where_moving_who_yields_does_not_help_another_moves() -> None:
    batch = Standing(service=ServiceClass("batch", yields=True))
    scheduler = make_cluster({2: batch})
    report(scheduler, "d0", r1=900, r3=700)
    report(scheduler, "d1", r2=10)  # it runs where little runs
    scheduler.wait(6.0)
    assert [target for _, target in moves(scheduler)] == ["d1"]


def test_a_running_request_moves_between_equal_kv_layouts_alone() -> None:
    scheduler = make_cluster()
    scheduler.connect(replace(make_info("d2", Role.DECODE, blocks=1000), kv_layout="swizzled"))
    report(scheduler, "d0", r1=900, r2=800, r3=700)
    report(scheduler, "d1", r4=600)
    report(scheduler, "d2")
    scheduler.wait(6.0)
    assert {target for _, target in moves(scheduler)} <= {"d1"}


@pytest.mark.parametrize(("lost_tokens", "targets"), [(0, ["d1"]), (2400, [])])
def test_a_unit_that_has_preempted_what_it_must_compute_again_is_not_light(
    lost_tokens: int, targets: list[str]
) -> None:
    scheduler = make_cluster(rescheduling="current-load")
    report(scheduler, "d0", r1=900, r2=800, r3=700)
    report(scheduler, "d1", lost_tokens=lost_tokens)
    scheduler.wait(6.0)
    assert [target for _, target in moves(scheduler)] == targets


def test_its_gateway_is_told_when_it_has_moved() -> None:
    scheduler = unbalanced()
    scheduler.handed_off("d0")
    assert scheduler.placed()[-1] == (1, "d1")
    assert scheduler.core.status().counters.num_relocations == 1


def test_a_move_that_fails_leaves_it_where_it_runs() -> None:
    scheduler = unbalanced()
    scheduler.handed_off("d0", ok=False)
    scheduler.end_forward("d0")
    assert moves(scheduler) == [(1, "d1")]
    assert scheduler.lost() == []
    scheduler.end_forward("d0", finished=(1, 2, 3))
    assert scheduler.core.status().num_tracked == 0


def test_one_that_could_not_leave_any_more_is_not_lost() -> None:
    scheduler = unbalanced()
    scheduler.handed_off("d0", ok=False, retriable=False)
    assert scheduler.lost() == []
    assert scheduler.cancelled("d0") == []


def test_who_has_moved_rests() -> None:
    scheduler = unbalanced()
    scheduler.handed_off("d0")
    report(scheduler, "d0", r2=100)
    report(scheduler, "d1", r1=5000, r3=700)
    scheduler.wait(5.0)
    assert scheduler.orders("d1", Handoff) == []


def test_reports_of_workers_in_a_move_are_not_used_again() -> None:
    scheduler = unbalanced()
    scheduler.wait(20.0)
    assert moves(scheduler) == [(1, "d1")]


def test_a_request_that_ends_while_it_moves_is_stopped_at_the_target() -> None:
    scheduler = unbalanced()
    scheduler.end_forward("d0", finished=(1,))
    assert scheduler.orders("d1", CancelStream) == [CancelStream(key(1))]


def test_a_target_that_dies_leaves_it_at_its_source() -> None:
    scheduler = unbalanced()
    scheduler.kill("d1")
    scheduler.handed_off("d0", ok=False)
    assert scheduler.lost() == []


def test_nothing_moves_under_another_policy() -> None:
    scheduler = unbalanced(rescheduling="none")
    assert moves(scheduler) == []


# --- the phase boundary ---------------------------------------------------------------


def answering(scheduler: SchedulerHarness, num_reasoning: int) -> None:
    held = HeldRequest(key(1), "r1", 0, 900, awaiting_handoff=False)
    loads = (UnitLoad(0, 0, 3, 2400, 700, num_reasoning=num_reasoning),)
    scheduler.post(WorkerReported("d0", EndForward(1, 0.0, (), loads, answering=(held,))))


def test_an_answer_goes_where_the_fewest_requests_reason() -> None:
    scheduler = make_cluster(placement="pascal")
    answering(scheduler, num_reasoning=3)
    assert moves(scheduler) == [(1, "d1")]
    assert scheduler.decisions()[-1].question == "boundary"


def test_an_answer_stays_under_policies_that_do_not_ask() -> None:
    scheduler = make_cluster()
    answering(scheduler, num_reasoning=3)
    assert moves(scheduler) == []
