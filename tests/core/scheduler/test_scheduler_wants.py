"""The scheduler's core: loads and lengths are reported where a request has a choice of units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.scheduler.admission import wanted_reports
from headway.core.scheduler.events import WorkerGone, WorkerReported
from headway.core.settings import policy_settings
from headway.messages import LoadReport, RunningRequests, WantedReports
from headway.presets import PRESETS
from tests.fakes.scheduler_text import SchedulerHarness, make_info, short_pass

SETTINGS = replace(short_pass(), rescheduling="star", placement="min-cost")
NOTHING = wanted_reports(SETTINGS, has_choice=False)
ALL = wanted_reports(SETTINGS)


def wants(scheduler: SchedulerHarness, worker_id: str) -> list[WantedReports]:
    return scheduler.orders(worker_id, WantedReports)


def ahead_of(scheduler: SchedulerHarness, worker_id: str) -> tuple[float, ...]:
    """Return the loads to come that the leader's picture shows of a worker."""
    workers = scheduler.core.pictures.draw().workers
    return next(tuple(w.ahead_tokens) for w in workers if w.worker_id == worker_id)


def test_a_hello_asks_for_neither_loads_nor_lengths() -> None:
    assert not NOTHING.lengths
    assert NOTHING.load_interval == float("inf")
    assert ALL.lengths
    assert ALL.load_interval < float("inf")


def test_one_decode_unit_is_no_choice_and_a_second_one_is() -> None:
    scheduler = SchedulerHarness(SETTINGS)
    scheduler.connect(make_info("p"))
    scheduler.connect(make_info("d0", Role.DECODE))
    assert wants(scheduler, "p") == wants(scheduler, "d0") == []
    scheduler.connect(make_info("d1", Role.DECODE))
    assert wants(scheduler, "d0") == wants(scheduler, "d1") == wants(scheduler, "p") == [ALL]
    scheduler.post(WorkerGone("d1", "it died"))
    assert wants(scheduler, "d0") == [ALL, NOTHING]


def test_the_last_loads_of_a_unit_that_has_become_the_only_one_are_forgotten() -> None:
    scheduler = SchedulerHarness(SETTINGS)
    scheduler.connect(make_info("d0", Role.DECODE))
    scheduler.connect(make_info("d1", Role.DECODE))
    report = LoadReport((RunningRequests(0, (), (), (), (5.0, 4.0)),), step_time=0.01)
    scheduler.post(WorkerReported("d0", report))
    assert ahead_of(scheduler, "d0")
    scheduler.post(WorkerGone("d1", "it died"))
    assert not ahead_of(scheduler, "d0")
    scheduler.post(WorkerReported("d0", report))  # it was on its way
    assert not ahead_of(scheduler, "d0")


def test_a_decoder_that_changes_its_role_leaves_no_loads_behind() -> None:
    scheduler = SchedulerHarness(SETTINGS)
    for name in ("d0", "d1"):
        scheduler.connect(make_info(name, Role.DECODE))
    report = LoadReport((RunningRequests(0, (), (), (), (5.0, 4.0)),), step_time=0.01)
    scheduler.post(WorkerReported("d0", report))
    scheduler.connect(make_info("d0"))
    assert not ahead_of(scheduler, "d0")


def test_two_units_of_one_worker_are_a_choice_and_so_are_two_unified_workers() -> None:
    for infos in (
        [make_info("d0", Role.DECODE, units=2)],
        [make_info("u0", Role.UNIFIED), make_info("u1", Role.UNIFIED)],
    ):
        scheduler = SchedulerHarness(SETTINGS)
        for info in infos:
            scheduler.connect(info)
        assert [wants(scheduler, info.worker_id) for info in infos] == [[ALL]] * len(infos)


@pytest.mark.parametrize("other", [{"kv_layout": "swizzled"}, {"kv_layout": ""}, {"model": "n"}])
def test_units_that_no_kv_can_go_between_are_none(other: dict[str, str]) -> None:
    scheduler = SchedulerHarness(SETTINGS)
    scheduler.connect(make_info("d0", Role.DECODE))
    scheduler.connect(replace(make_info("d1", Role.DECODE), **other))  # type: ignore[arg-type]  # fields by name
    assert wants(scheduler, "d0") == wants(scheduler, "d1") == []


def test_who_has_been_greeted_again_is_told_again() -> None:
    scheduler = SchedulerHarness(SETTINGS)
    scheduler.connect(make_info("d0", Role.DECODE))
    scheduler.connect(make_info("d1", Role.DECODE))
    scheduler.connect(make_info("d0", Role.DECODE))
    assert wants(scheduler, "d0") == [ALL, ALL]


@pytest.mark.parametrize("name", ["vllm-like", "sbs"])
def test_a_preset_that_reads_neither_orders_nothing(name: str) -> None:
    scheduler = SchedulerHarness(policy_settings(PRESETS[name]).scheduler)
    scheduler.connect(make_info("d0", Role.DECODE))
    scheduler.connect(make_info("d1", Role.DECODE))
    assert wants(scheduler, "d0") == wants(scheduler, "d1") == []
