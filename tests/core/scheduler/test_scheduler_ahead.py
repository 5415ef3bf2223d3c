"""The scheduler places by what units will hold: reported loads, and what has come since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.events import WorkerReported
from headway.messages import Handoff, LoadReport, RunningRequests
from headway.policies import registry
from tests.fakes.scheduler_text import (
    SchedulerHarness,
    decoding_cluster,
    key,
    make_info,
    short_pass,
)

STEPS = 16


def report(scheduler: SchedulerHarness, worker_id: str, future: float, *numbers: int) -> None:
    num = len(numbers)
    keys = tuple(key(number) for number in numbers)
    running = RunningRequests(0, keys, (10,) * num, (500.0,) * num, (future,) * STEPS)
    scheduler.post(WorkerReported(worker_id, LoadReport((running,))))


def placed(scheduler: SchedulerHarness, number: int, remaining: float = 0.0) -> str:
    scheduler.submit(number)
    scheduler.prefill("p", number, remaining=remaining)
    found = [o for o in scheduler.orders("p", Handoff) if o.key == key(number)]
    scheduler.handed_off("p")
    return found[-1].target_worker_id


@pytest.mark.parametrize("placement", ["star", "min-cost"])
def test_the_reported_future_decides(placement: str) -> None:
    scheduler = decoding_cluster("d0", "d1", placement=placement)
    report(scheduler, "d0", 5000.0)
    report(scheduler, "d1", 100.0)
    assert placed(scheduler, 1) == "d1"


def test_the_present_load_alone_decides_elsewhere() -> None:
    scheduler = decoding_cluster("d0", "d1", placement="least-kv")
    report(scheduler, "d0", 5000.0)
    report(scheduler, "d1", 100.0)
    assert placed(scheduler, 1) == "d0"


def test_what_was_sent_since_the_report_counts_with_its_growth() -> None:
    scheduler = decoding_cluster("d0", "d1", placement="star")
    report(scheduler, "d0", 0.0)
    report(scheduler, "d1", 50.0)
    assert placed(scheduler, 1, remaining=5000.0) == "d0"
    assert placed(scheduler, 2, remaining=5000.0) == "d1"


def test_a_report_that_has_it_does_not_count_it_twice() -> None:
    scheduler = decoding_cluster("d0", "d1", placement="star")
    report(scheduler, "d0", 0.0)
    report(scheduler, "d1", 900.0)
    assert placed(scheduler, 1, remaining=5000.0) == "d0"
    report(scheduler, "d0", 600.0, 1)
    assert placed(scheduler, 2, remaining=5000.0) == "d0"


def test_a_report_over_another_horizon_is_the_present_load() -> None:
    scheduler = decoding_cluster("d0", "d1", placement="star")
    short = RunningRequests(0, (), (), (), (5000.0,))
    scheduler.post(WorkerReported("d0", LoadReport((short,))))
    report(scheduler, "d1", 100.0)
    assert placed(scheduler, 1) == "d0"


@pytest.mark.parametrize("placement", ["star", "min-cost"])
def test_workers_are_asked_for_predicted_loads_though_nothing_moves(placement: str) -> None:
    settings = replace(short_pass(), placement=placement, rescheduling="none")
    wants = wanted_reports(settings)
    assert (wants.load_interval, wants.num_steps, wants.lengths) == (1.0, STEPS, True)
    nothing = wanted_reports(replace(settings, placement="least-kv"))
    assert nothing.load_interval == float("inf")
    assert not nothing.lengths


# --- what a decision tells ------------------------------------------------------------------


@pytest.mark.parametrize("placement", registry.REGISTRY["placement"])
def test_a_placement_tells_what_it_compared_of_those_that_lost_too(placement: str) -> None:
    scheduler = decoding_cluster("d0", "d1", placement=placement)
    report(scheduler, "d0", 5000.0)
    report(scheduler, "d1", 100.0)
    placed(scheduler, 1)
    decision = scheduler.core.decisions[-1]
    (chosen,) = decision.chosen
    scores = {each.unit: each.score for each in decision.considered}
    if placement in ("random", "round-robin"):
        assert set(scores.values()) == {()}
    else:
        assert scores[chosen.unit] == pytest.approx(chosen.score)
        assert chosen.score == pytest.approx(min(scores.values()))
    predicted = [each.predicted_tokens for each in decision.considered]
    if registry.make("placement", placement).reads_ahead:
        over_all = STEPS / (STEPS + 1)  # none of it now
        assert predicted == pytest.approx([over_all * 5000, over_all * 100])
    else:
        assert predicted == [None, None]


def test_the_score_of_requests_that_are_placed_together_is_told_where_it_is_the_units() -> None:
    for placement, is_told in (("min-cost", True), ("star", False), ("bucket-balance", False)):
        scheduler = SchedulerHarness(replace(short_pass(), placement=placement))
        scheduler.connect(make_info("p"))
        for number in (1, 2):
            scheduler.submit(number)
            scheduler.prefill("p", number)
        scheduler.connect(make_info("d", Role.DECODE, blocks=1000))
        decision = scheduler.core.decisions[-1]
        assert len(decision.chosen) == 2
        assert [bool(each.score) for each in decision.considered] == [is_told]


def test_nobody_is_told_where_nobody_keeps_decisions() -> None:
    scheduler = decoding_cluster("d0", "d1", placement="min-cost")
    scheduler.core.keep_decisions(False)
    placed(scheduler, 1)
    assert not scheduler.core.decisions
