"""The autoscaler's budget, and where it begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.autoscaler.budget import Budget
from headway.core.autoscaler.core import AutoscalerCore, FleetReport, OrderedReport, RateReport
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.errors import HeadwayError
from headway.policies.scaling.fixed import Fixed, FixedParams
from headway.policies.scaling.protocol import Fleet, PoolLoad, Targets
from tests.fakes.policies import make_policy

POOLS = st.integers(0, 50)


def scaled(name: str = "tokenscale") -> AutoscalerCore:
    return AutoscalerCore(make_policy("scaling", name), now=0.0)


def test_targets_within_the_budget_stay_as_they_are() -> None:
    targets = Targets(3, 4, 1, 0, "why")
    assert Budget(8).fit(targets) is targets
    assert Budget(0).fit(targets) is targets


def test_both_pools_are_cut_in_proportion_and_the_reason_says_so() -> None:
    fitted = Budget(10).fit(Targets(12, 6, 1, 0, "why"))
    assert (fitted.num_prefill, fitted.num_decode, fitted.num_convertible) == (6, 3, 1)
    assert fitted.reason == "why; cut from 19 to the budget of 10"


@given(POOLS, POOLS, POOLS, st.integers(1, 60), POOLS, POOLS)
def test_no_pool_grows_or_falls_below_its_minimum_or_what_is_wanted(
    num_prefill: int, num_decode: int, fixed: int, most: int, least_p: int, least_d: int
) -> None:
    most = max(most, least_p + least_d)
    fitted = Budget(most, least_p, least_d).fit(Targets(num_prefill, num_decode, fixed, 0, ""))
    assert min(least_p, num_prefill) <= fitted.num_prefill <= num_prefill
    assert min(least_d, num_decode) <= fitted.num_decode <= num_decode
    total = fitted.num_prefill + fitted.num_decode + fixed
    assert total <= max(most, fixed + least_p + least_d)


def test_a_budget_below_the_minima_is_refused() -> None:
    with pytest.raises(HeadwayError, match="budget is 3; it must be 0 or at least the minima, 4"):
        Budget(3, 2, 2)


def test_the_core_keeps_to_its_budget() -> None:
    core = AutoscalerCore(
        Fixed(FixedParams(8, 8)), now=0.0, settings=AutoscalerSettings(budget=Budget(4))
    )
    (decided,) = core.wake(now=0.0)
    assert (decided.targets.num_prefill, decided.targets.num_decode) == (2, 2)


@pytest.mark.parametrize("policy", ["tokenscale", "aibrix", "blitzscale", "utilisation"])
def test_an_autoscaler_that_comes_back_begins_with_what_there_is(policy: str) -> None:
    core = scaled(policy)
    core.handle(OrderedReport(num_prefill=5, num_decode=6), now=0.0)
    (decided,) = core.wake(now=0.0)
    assert (decided.targets.num_prefill, decided.targets.num_decode) == (5, 6)


def test_what_is_ordered_later_changes_no_decision() -> None:
    core = scaled()
    core.handle(OrderedReport(num_prefill=2, num_decode=2), now=0.0)
    core.handle(OrderedReport(num_prefill=9, num_decode=9), now=0.1)
    (decided,) = core.wake(now=0.2)
    assert (decided.targets.num_prefill, decided.targets.num_decode) == (2, 2)


@pytest.mark.parametrize(("later", "num_starting"), [(0.0, 2), (5.1, 0)])
def test_what_is_ordered_and_not_ready_starts_unless_nobody_has_repeated_it_for_long(
    later: float, num_starting: int
) -> None:
    core = scaled("blitzscale")
    core.handle(OrderedReport(num_prefill=3), now=0.0)
    core.handle(FleetReport(Fleet(PoolLoad(1), PoolLoad(2))), now=later)
    (decided,) = core.wake(now=later)
    assert decided.fleet is not None
    assert decided.fleet.prefill.num_starting == num_starting
    assert decided.fleet.decode.num_starting == 0


def test_a_decision_says_what_it_comes_from() -> None:
    core = scaled()
    (decided,) = core.wake(now=0.0)
    assert (decided.rates, decided.fleet) == (None, None)
    core.handle(RateReport("a", 2.0, 10.0, 20.0), now=0.5)
    core.handle(FleetReport(Fleet(PoolLoad(1), PoolLoad(2))), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert decided.rates is not None
    assert decided.fleet is not None
    assert (decided.rates.requests_per_s, decided.fleet.decode.num_ready) == (2.0, 2)


@pytest.mark.parametrize("number", [-1, 10_001])
def test_a_malformed_count_is_refused(number: int) -> None:
    with pytest.raises(HeadwayError, match="num_decode"):
        OrderedReport(num_decode=number)
