"""Staggered Batch Scheduling, section 4.2.1: C_avail = C_chunk − U_flight − R_queued."""

from __future__ import annotations

from headway.cluster import UnitLoad, WorkerInfo
from headway.core.scheduler.instance import Instance
from headway.messages import Dispatch, UnitBatch
from tests.fakes.scheduler_text import idle_loads, make_info, make_request

INFO = make_info("w", units=2, chunk=100, blocks=50, block_size=10)


def make_instance(info: WorkerInfo = INFO) -> Instance:
    instance = Instance(info, kv_watermark=0.1)
    instance.report(idle_loads(info), now=0.0)
    return instance


def dispatch(dispatch_id: int, *lengths: int, unit: int = 0) -> Dispatch:
    requests = tuple(
        make_request(100 * dispatch_id + i, length) for i, length in enumerate(lengths)
    )
    return Dispatch(dispatch_id, (UnitBatch(unit, requests),))


def report(queued: int, free: int = 50) -> tuple[UnitLoad, ...]:
    return (UnitLoad(0, queued, 0, 0, free), UnitLoad(1, 0, 0, 0, 50))


def test_an_idle_unit_has_a_whole_chunk() -> None:
    assert [make_instance().capacity(unit) for unit in (0, 1)] == [100, 100]


def test_a_dispatch_in_flight_takes_capacity_of_its_unit_alone() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30, 40), now=0.0)
    assert (instance.capacity(0), instance.capacity(1)) == (30, 100)


def test_an_acknowledged_dispatch_is_backlog_without_gap_or_double_count() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30), now=0.0)
    assert instance.accepted(1, now=0.2) == 0.2
    assert instance.capacity(0) == 70


def test_a_report_replaces_what_was_acknowledged_before_it() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 130), now=0.0)
    instance.accepted(1, now=0.1)
    instance.report(report(queued=30), now=0.2)
    assert instance.capacity(0) == 70


def test_a_report_knows_nothing_of_what_is_still_in_flight() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30), now=0.0)
    instance.report(report(queued=0), now=0.1)
    assert instance.capacity(0) == 70


def test_capacity_may_be_negative() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 250), now=0.0)
    assert instance.capacity(0) == -150


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30), now=0.0)
    instance.accepted(1, now=0.1)
    assert instance.accepted(1, now=5.0) is None
    assert instance.capacity(0) == 70


def test_the_watchdog_resets_what_is_in_flight() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30), now=0.0)
    instance.reset_in_flight()
    assert instance.capacity(0) == 100


def test_an_acknowledgement_after_the_reset_measures_nothing() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 30), now=0.0)
    instance.reset_in_flight()
    assert instance.accepted(1, now=9.0) is None


def test_kv_blocks_of_a_dispatch_count_until_a_report_includes_it_even_after_a_reset() -> None:
    instance = make_instance()
    instance.sent(dispatch(1, 25, 25), now=0.0)
    assert instance.num_free_blocks(0) == 44
    instance.reset_in_flight()
    assert instance.num_free_blocks(0) == 44
    instance.accepted(1, now=0.1)
    instance.report(report(queued=0, free=45), now=0.2)
    assert instance.num_free_blocks(0) == 45


def test_the_backlog_on_the_device_will_need_blocks_too() -> None:
    instance = make_instance()
    instance.report(report(queued=95, free=40), now=0.1)
    assert instance.num_free_blocks(0) == 30


def test_an_instance_is_quiescent_when_nothing_is_queued_or_on_its_way() -> None:
    instance = make_instance()
    assert instance.load.task_depth == 0
    instance.sent(dispatch(1, 30), now=0.0)
    instance.reset_in_flight()
    assert instance.load.task_depth > 0
    instance.accepted(1, now=0.1)
    instance.report(report(queued=0), now=0.2)
    assert instance.load.task_depth == 0


def test_loads_of_units_that_the_worker_does_not_have_are_ignored() -> None:
    instance = make_instance()
    instance.report([UnitLoad(7, 50, 0, 0, 0), UnitLoad(-1, 50, 0, 0, 0)], now=0.1)
    assert [instance.capacity(unit) for unit in (0, 1)] == [100, 100]
