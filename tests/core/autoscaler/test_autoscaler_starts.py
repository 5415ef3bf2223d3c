"""Start-up times: the last ones tell of the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.autoscaler.core import AutoscalerCore, FleetReport, OrderedReport
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.core.autoscaler.starts import (
    NUM_COUNTED,
    InstanceStart,
    SeenStarts,
    StartsReport,
    StartUps,
)
from headway.errors import HeadwayError
from headway.policies.scaling.fixed import Fixed, FixedParams
from headway.policies.scaling.protocol import Fleet, PoolLoad, StartUp


def report(*seconds: float, warm: bool = False, num_standby: int = 0) -> StartsReport:
    starts = [InstanceStart(f"w{s}", "decode", s, warm) for s in seconds]
    return StartsReport(starts, num_standby)


def test_nothing_measured_is_not_nothing() -> None:
    assert StartUps().next() is None


def test_the_next_takes_the_median_of_the_last() -> None:
    found = StartUps()
    found.take(report(3.0, 9.0, 4.0))
    assert found.next() == StartUp(4.0, 3)
    found.take(report(*[20.0] * NUM_COUNTED))
    assert found.next() == StartUp(20.0, NUM_COUNTED)


def test_one_that_stands_by_comes_first_and_takes_as_long_as_those_before_it() -> None:
    found = StartUps()
    found.take(report(5.0))
    found.take(report(0.25, 0.75, warm=True, num_standby=1))
    assert found.next() == StartUp(0.5, 2, 1)
    found.take(report(num_standby=0))
    assert found.next() == StartUp(5.0, 1), "none is left: the next one is cold"


def test_what_stands_by_for_the_first_time_is_not_known() -> None:
    found = StartUps()
    found.take(report(5.0, num_standby=1))
    assert found.next() is None


def test_where_nobody_tells_of_starts_the_fleet_shows_them() -> None:
    patient = AutoscalerSettings(interval=100.0, staleness=100.0)
    core = AutoscalerCore(Fixed(FixedParams(1, 1)), now=0.0, settings=patient)
    core.wake(now=0.0)
    for now, num_ordered, num_ready in ((0, 1, 1), (1, 3, 1), (5, 3, 2), (9, 3, 3), (20, 3, 2)):
        core.handle(OrderedReport(num_decode=num_ordered), now=float(now))
        core.handle(FleetReport(Fleet(decode=PoolLoad(num_ready))), now=float(now))
    core.handle(FleetReport(Fleet(decode=PoolLoad(3))), now=30.0)  # it has come back by itself
    (decided,) = core.wake(now=31.0)
    assert decided.fleet is not None
    assert decided.fleet.start_up == StartUp(6.0, 2), "4 s and 8 s after their order"


def test_an_order_that_is_taken_back_was_the_youngest() -> None:
    seen = SeenStarts()
    for now, number in ((0.0, 1), (1.0, 2), (3.0, 3), (4.0, 2)):
        seen.ordered("decode", number, now=now)
    seen.ready("decode", 1, now=4.0)
    assert [start.seconds for start in seen.ready("decode", 3, now=6.0)] == [5.0]


@given(st.lists(st.tuples(st.sampled_from(["ordered", "ready"]), st.integers(0, 9)), max_size=40))
def test_no_more_instances_start_than_were_ordered(steps: list[tuple[str, int]]) -> None:
    seen, num_orders, num_starts, before = SeenStarts(), 0, 0, None
    for now, (kind, number) in enumerate(steps):
        if kind == "ordered":
            num_orders += max(0, number - (number if before is None else before))
            before = number
            seen.ordered("decode", number, now=float(now))
        else:
            starts = seen.ready("decode", number, now=float(now))
            num_starts += len(starts)
            assert all(start.seconds >= 0 for start in starts)
    assert num_starts <= num_orders


def test_a_decision_is_made_with_it() -> None:
    core = AutoscalerCore(Fixed(FixedParams(1, 1)), now=0.0)
    core.handle(report(2.5), now=0.0)
    core.handle(FleetReport(Fleet(PoolLoad(1), PoolLoad(1))), now=0.0)
    (decided,) = core.wake(now=0.5)
    assert decided.fleet is not None
    assert decided.fleet.start_up == StartUp(2.5, 1)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_start_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(HeadwayError, match="seconds"):
        InstanceStart("w", "decode", seconds)
