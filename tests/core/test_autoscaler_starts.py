"""Start-up times: the last ones tell of the next."""

from __future__ import annotations

import pytest

from headway.core.autoscaler import AutoscalerCore, FleetReport
from headway.core.autoscaler_starts import NUM_COUNTED, InstanceStart, StartsReport, StartUps
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
