"""The autoscaler's core: fresh rates add up, stale ones are no figure."""

from __future__ import annotations

import math

import pytest

from headway.core.autoscaler.core import AutoscalerCore, FleetReport, RateReport
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.messages import PassWork
from headway.policies.scaling.fixed import Fixed, FixedParams
from headway.policies.scaling.protocol import Fleet, PoolLoad, Scaling, WorkSample
from tests.fakes.policies import make_policy


def make_core() -> AutoscalerCore:
    return AutoscalerCore(Fixed(FixedParams(2, 3)), now=0.0)


def test_the_fixed_policy_says_the_configured_numbers_once_an_interval() -> None:
    core = make_core()
    assert core.next_wakeup == 0.0
    (decided,) = core.wake(now=0.0)
    assert (decided.targets.num_prefill, decided.targets.num_decode) == (2, 3)
    assert core.next_wakeup == 1.0


def test_rates_of_all_gateways_add_up_and_the_newest_of_each_counts() -> None:
    core = make_core()
    for gateway_id, rate in (("a", 9.0), ("a", 1.0), ("b", 2.0)):
        core.handle(RateReport(gateway_id, rate, 10.0, 20.0), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert "3.00 requests/s" in decided.targets.reason


def test_rates_of_one_gateways_models_add_up() -> None:
    core = make_core()
    for model, rate in (("a", 9.0), ("a", 1.0), ("b", 2.0)):
        core.handle(RateReport("g", rate, 10.0, 20.0, model=model), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert "3.00 requests/s" in decided.targets.reason


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    core = make_core()
    for observed_at, rate in ((20.0, 4.0), (19.0, 9.0)):
        core.handle(RateReport("a", rate, 10.0, 20.0, observed_at), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert "4.00 requests/s" in decided.targets.reason


def test_a_gateway_whose_clock_went_back_counts_again_once_its_report_is_stale() -> None:
    core = make_core()
    core.handle(RateReport("a", 9.0, 10.0, 20.0, 1000.0), now=0.0)
    core.handle(RateReport("a", 4.0, 10.0, 20.0, 10.0), now=5.1)
    (decided,) = core.wake(now=5.2)
    assert "4.00 requests/s" in decided.targets.reason


def test_a_stale_report_is_no_figure_and_the_reason_says_so() -> None:
    core = make_core()
    core.handle(RateReport("a", 5.0, 10.0, 20.0), now=0.0)
    (decided,) = core.wake(now=5.1)
    assert "no fresh rates" in decided.targets.reason
    assert decided.targets.num_prefill == 2


def test_zero_traffic_is_a_number() -> None:
    core = make_core()
    core.handle(RateReport("a", 0.0, 0.0, 0.0), now=0.0)
    (decided,) = core.wake(now=1.0)
    assert "0.00 requests/s" in decided.targets.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_malformed_rate_is_refused(value: float) -> None:
    with pytest.raises(HeadwayError, match="input_tokens_per_s"):
        RateReport("a", 1.0, value, 1.0)


def test_fixed_numbers_have_a_range() -> None:
    with pytest.raises(HeadwayError, match="num_decode"):
        make_policy("scaling", "fixed", num_decode=-1)


def scaled(name: str = "tokenscale", **params: object) -> AutoscalerCore:
    return AutoscalerCore(make_policy("scaling", name, **params), now=0.0)


def test_buckets_of_all_gateways_add_up() -> None:
    core = scaled(convertibles=False, target_utilisation=1.0, max_decode=20)
    for gateway_id in ("a", "b"):
        by_bucket = (23_535.0, *([0.0] * 8))
        core.handle(RateReport(gateway_id, 1.0, 10.0, 20.0, 0.0, 1.0, by_bucket), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert decided.targets.num_decode == 2


def test_a_gateway_that_does_not_tell_its_buckets_makes_all_count_by_their_mean() -> None:
    core = scaled()
    core.handle(RateReport("a", 1.0, 1024.0, 350.0, 0.0, 1.0, (1.0,) * 9), now=0.5)
    core.handle(RateReport("b", 1.0, 1024.0, 350.0), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert "(2748 + 0/5) tokens/s" in decided.targets.reason


def test_labelled_tokens_of_all_gateways_add_up_unless_one_labels_none() -> None:
    core = scaled()
    core.handle(RateReport("a", 1.0, 10.0, 20.0, burst_tokens_per_s=4.0), now=0.5)
    core.handle(RateReport("b", 1.0, 10.0, 20.0, burst_tokens_per_s=3.0), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert decided.rates is not None
    assert decided.rates.burst_tokens_per_s == 7.0
    assert [each.name for each in decided.constants] == ["burst ratio"]
    core.handle(RateReport("c", 1.0, 10.0, 20.0), now=1.5)
    (decided,) = core.wake(now=2.0)
    assert decided.rates is not None
    assert decided.rates.burst_tokens_per_s is None
    with pytest.raises(HeadwayError, match="burst_tokens_per_s"):
        RateReport("a", 1.0, 1.0, 1.0, burst_tokens_per_s=-1.0)


def test_the_fleet_is_told_to_the_policy_while_it_is_fresh() -> None:
    core = scaled("blitzscale")
    core.handle(FleetReport(Fleet(PoolLoad(1, num_requests=20), PoolLoad(1))), now=0.0)
    (decided,) = core.wake(now=1.0)
    assert decided.targets.num_prefill == 3
    (decided,) = core.wake(now=6.0)
    assert decided.targets.reason.startswith("no fresh load of the fleet")
    assert decided.targets.num_prefill == 3


def test_each_velocity_sample_is_told_once() -> None:
    core = scaled(velocity_weight=1.0)
    slow = load_profile("llama-8b-a100").pass_time
    work = PassWork(1, 2 * slow.seconds(1000, 0, 0, 0), 1000)  # half of what the profile says
    samples = (WorkSample("w", "prefill", work),) * 33
    core.handle(FleetReport(Fleet(PoolLoad(1), PoolLoad(1), samples=samples)), now=0.0)
    core.handle(RateReport("a", 1.0, 10.0, 20.0), now=0.0)
    core.wake(now=1.0)
    core.handle(FleetReport(Fleet(PoolLoad(1), PoolLoad(1))), now=1.0)
    (decided,) = core.wake(now=2.0)
    velocity = load_profile("llama-8b-a100").prefill_velocity() / 2
    assert f"0.85 × {velocity:.0f}" in decided.targets.reason


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (PoolLoad(-1), "prefill num_ready is -1"),
        (PoolLoad(1, memory=1.5), "prefill memory is 1.5"),
        (PoolLoad(1, busy=math.nan), "prefill busy is nan"),
    ],
)
def test_a_malformed_load_is_refused(pool: PoolLoad, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        FleetReport(Fleet(prefill=pool))


def test_buckets_are_nine_or_none() -> None:
    with pytest.raises(HeadwayError, match="bucket_tokens_per_s is 3; it must be 9 rates"):
        RateReport("a", 1.0, 1.0, 1.0, 0.0, 1.0, (1.0, 2.0, 3.0))
    with pytest.raises(HeadwayError, match="bucket_tokens_per_s S-M"):
        RateReport("a", 1.0, 1.0, 1.0, 0.0, 1.0, (1.0, math.nan, *([0.0] * 7)))


def test_an_autoscaler_of_a_model_hears_of_it_alone() -> None:
    policy: Scaling = make_policy("scaling", "blitzscale", window=1.0)
    core = AutoscalerCore(policy, now=1.0, settings=AutoscalerSettings(model="m"))
    core.handle(FleetReport(Fleet(PoolLoad(1, num_requests=20), PoolLoad(1)), "m"), now=0.0)
    core.handle(FleetReport(Fleet(PoolLoad(9, num_requests=900), PoolLoad(9)), "other"), now=0.0)
    core.handle(RateReport("g", 1e6, 0.0, 0.0, model="other"), now=0.0)
    (decided,) = core.wake(now=1.0)
    assert decided.targets.num_prefill == 3
    assert decided.rates is None


def test_one_of_no_model_adds_all_of_them_up() -> None:
    policy: Scaling = make_policy("scaling", "blitzscale", window=1.0)
    core = AutoscalerCore(policy, now=1.0)
    core.handle(FleetReport(Fleet(PoolLoad(1, num_requests=13), PoolLoad(1)), "m"), now=0.0)
    other = Fleet(PoolLoad(3, num_requests=7, busy=0.4), PoolLoad(1, memory=0.5))
    core.handle(FleetReport(other, "other"), now=0.5)
    (decided,) = core.wake(now=1.0)
    assert decided.fleet is not None
    assert decided.fleet.prefill == PoolLoad(4, 0, 20, 0, pytest.approx(0.3))  # type: ignore[arg-type]  # approx is no float
    assert decided.fleet.decode.memory == 0.25
    core.handle(FleetReport(other, "other"), now=5.5)
    (decided,) = core.wake(now=6.0)  # the first one is stale
    assert decided.fleet is not None
    assert decided.fleet.prefill.num_ready == 3
