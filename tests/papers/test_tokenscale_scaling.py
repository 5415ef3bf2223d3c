"""TokenScale, section IV-C: how many prefillers, decoders and convertible decoders."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from headway.cost.buckets import BUCKET_NAMES
from headway.cost.costs import Constant, Source
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.messages import PassWork
from headway.policies.scaling.burst_ratio import num_convertibles
from headway.policies.scaling.meter import RateMeter
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, StartUp, Targets, WorkSample
from headway.policies.scaling.tokenscale import TokenScale, TokenScaleParams
from headway.service_class import ServiceClass, Standing

A100 = load_profile("llama-8b-a100")
FLEET = Fleet(PoolLoad(1), PoolLoad(1))
PLAIN = TokenScaleParams(
    profile=A100,
    convertibles=False,
    target_utilisation=1.0,
    max_prefill=64,
    max_decode=64,
    margin=0.0,
)


def rates(input_per_s: float = 0.0, **by_bucket: float) -> Rates:
    named = {name.replace("_", "-"): value for name, value in by_bucket.items()}
    return Rates(1.0, input_per_s, 1.0, tuple(named.get(name, 0.0) for name in BUCKET_NAMES))


def first(params: TokenScaleParams, seen: Rates | None, fleet: Fleet | None = FLEET) -> Targets:
    return TokenScale(params).targets(seen, fleet, now=0.0)


def run(
    policy: TokenScale, seen: Rates | None, start: float, seconds: int, fleet: Fleet = FLEET
) -> Targets:
    """One decision a second; the last one."""
    for tick in range(seconds):
        targets = policy.targets(seen, fleet, now=start + tick)
    return targets


# --- prefillers ---------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "num"), [(1, 1), (14_000, 1), (14_001, 2), (70_000, 5)])
def test_prefillers_are_arriving_tokens_over_the_prefill_velocity_rounded_up(
    tokens: float, num: int
) -> None:
    assert first(PLAIN, rates(tokens)).num_prefill == num


def test_a_slower_network_counts_instead() -> None:
    slow = replace(A100, network_tokens_per_s=7000.0)
    assert first(replace(PLAIN, profile=slow), rates(14_000)).num_prefill == 2


def test_the_network_as_measured_stands_over_the_profiles() -> None:
    slow = replace(A100, network_tokens_per_s=7000.0)
    measured = replace(FLEET, network_tokens_per_s=3500.0)
    targets = first(replace(PLAIN, profile=slow), rates(14_000), measured)
    assert targets.num_prefill == 4
    assert "3500 (V_N, measured)" in targets.reason
    fast = replace(FLEET, network_tokens_per_s=1e6)
    assert first(replace(PLAIN, profile=slow), rates(14_000), fast).num_prefill == 1


def test_headroom_divides_every_velocity() -> None:
    params = replace(PLAIN, target_utilisation=0.7)
    assert first(params, rates(9_800)).num_prefill == 1
    assert first(params, rates(9_801)).num_prefill == 2


def test_a_backlog_counts_as_tokens_over_the_drain_target() -> None:
    fleet = Fleet(PoolLoad(1, backlog_tokens=70_000), PoolLoad(1))
    assert first(replace(PLAIN, drain_target=5.0), rates(14_000), fleet).num_prefill == 2


def test_a_burst_shows_at_once_within_the_rate_window() -> None:
    policy = TokenScale(PLAIN)
    run(policy, rates(14_000), 0.0, 60)
    assert policy.targets(rates(42_000), FLEET, now=60.0).num_prefill == 2  # mean of 2 s
    assert policy.targets(rates(42_000), FLEET, now=61.0).num_prefill == 3


# --- decoders -----------------------------------------------------------------------------


def test_decoders_are_the_sum_over_buckets_of_rate_over_velocity() -> None:
    seen = rates(0, S_S=2 * 23535, L_L=3 * 6495)
    assert first(PLAIN, seen).num_decode == 5


def test_the_ceiling_is_taken_of_the_sum_not_of_each_bucket() -> None:
    seen = rates(0, S_S=0.4 * 23535, M_M=0.4 * 9794, L_L=0.2 * 6495)
    assert first(PLAIN, seen).num_decode == 1


def test_decode_backlog_is_taken_to_be_like_what_arrives() -> None:
    fleet = Fleet(PoolLoad(1), PoolLoad(1, backlog_tokens=5 * 9794))
    assert first(replace(PLAIN, drain_target=5.0), rates(0, M_M=9794), fleet).num_decode == 2


def test_without_buckets_all_requests_are_of_the_mean_size() -> None:
    seen = Rates(10.0, 10 * 1024.0, 10 * 350.0)
    need = 10 * 1374 / 9794
    assert f"= {need:.2f}" in first(PLAIN, seen).reason


def test_without_buckets_and_output_the_bucket_says_how_long_outputs_are() -> None:
    seen = Rates(10.0, 10 * 1024.0, 0.0)
    assert f"= {10 * 1374 / 9794:.2f}" in first(PLAIN, seen).reason


# --- convertible decoders -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "ratio", "num"), [(10, 0.0, 0), (10, 0.01, 1), (10, 0.1, 1), (10, 0.11, 2), (8, 1, 8)]
)
def test_convertibles_are_max_decoders_times_burst_ratio_at_least_one_where_bursts_exist(
    most: int, ratio: float, num: int
) -> None:
    assert num_convertibles(most, ratio) == num


def test_regular_decoders_are_all_decoders_less_the_convertibles() -> None:
    params = replace(PLAIN, convertibles=True, burst_ratio=2 / 64)
    targets = first(params, rates(0, S_S=5 * 23535))
    assert (targets.num_decode, targets.num_convertible) == (3, 2)


def test_regular_decoders_are_never_below_their_minimum() -> None:
    params = replace(PLAIN, convertibles=True, min_decode=0)
    assert first(params, rates(0), Fleet(PoolLoad(1), PoolLoad(0))).num_decode == 0


def test_the_number_of_convertibles_is_fixed_for_a_ratio_that_was_given() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=20, burst_ratio=0.1))
    seen = {
        policy.targets(r, FLEET, now=now).num_convertible
        for now, r in enumerate((None, rates(0), rates(1e6, L_L=1e6), rates(0), None))
    }
    assert seen == {2}


def bursty(input_tokens_per_s: float, burst_tokens_per_s: float | None) -> Rates:
    return replace(rates(input_tokens_per_s), burst_tokens_per_s=burst_tokens_per_s)


def bursty_and_heavy(input_tokens_per_s: float, burst_tokens_per_s: float | None) -> Rates:
    """Traffic that needs a hundred decoders and more."""
    seen = bursty(input_tokens_per_s, burst_tokens_per_s)
    return replace(seen, bucket_tokens_per_s=rates(L_L=1e6).bucket_tokens_per_s)


def after(policy: TokenScale, seen: Rates, begin: int, seconds: int) -> Targets:
    for tick in range(begin, begin + seconds + 1):
        targets = policy.targets(seen, FLEET, now=float(tick))
    return targets


def test_the_burst_ratio_is_measured_once_there_was_traffic_for_ten_minutes() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100))
    early = after(policy, bursty_and_heavy(1000.0, 250.0), 0, 590)
    assert (early.num_convertible, policy.constants()) == (
        1,
        (Constant("burst ratio", 0.1, Source.DEFAULT),),
    )
    late = after(policy, bursty_and_heavy(1000.0, 250.0), 591, 20)
    (ratio,) = policy.constants()
    assert ratio.source is Source.MEASURED
    assert ratio.value == pytest.approx(0.25)
    assert late.num_convertible == 3
    assert "burst ratio 0.25 (measured)" in late.reason


def test_the_number_of_convertibles_stands_until_the_ratio_drifts_by_a_quarter() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=100))
    after(policy, bursty_and_heavy(1000.0, 200.0), 0, 610)
    assert after(policy, bursty_and_heavy(1000.0, 240.0), 611, 600).num_convertible == 20
    assert after(policy, bursty_and_heavy(1000.0, 600.0), 1212, 3000).num_convertible > 30


def test_quiet_traffic_keeps_one_convertible_and_no_traffic_measures_nothing() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100))
    assert after(policy, bursty(0.0, 0.0), 0, 700).num_convertible == 1
    assert policy.constants()[0].source is Source.DEFAULT
    assert after(policy, bursty(1000.0, 0.0), 701, 700).num_convertible == 1
    assert policy.constants()[0] == Constant("burst ratio", 0.0, Source.MEASURED)


@pytest.mark.parametrize("needed", [0.0, 0.4, 1.0, 2.5, 4.0, 40.0])
def test_a_ratio_that_was_measured_buys_no_more_convertibles_than_decoders_are_needed(
    needed: float,
) -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=10, target_utilisation=1.0))
    buckets = rates(S_S=needed * A100.decode_velocity(0)).bucket_tokens_per_s
    targets = after(policy, replace(bursty(1000.0, 600.0), bucket_tokens_per_s=buckets), 0, 620)
    assert policy.constants()[0].value == pytest.approx(0.6)
    assert targets.num_convertible == min(6, max(1, ceil(needed)))


def test_the_default_ratio_buys_none_for_decoders_that_nobody_needs() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=64))
    assert policy.targets(None, FLEET, now=0.0).num_convertible == 7
    assert policy.targets(rates(10.0), FLEET, now=1.0).num_convertible == 1
    assert policy.targets(bursty_and_heavy(10.0, None), FLEET, now=2.0).num_convertible == 7


def test_convertibles_stay_for_an_hour_after_the_decoders_were_needed() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=64))
    policy.targets(bursty_and_heavy(10.0, None), FLEET, now=0.0)
    for now, num in ((1.0, 7), (3599.0, 7), (3605.0, 1)):
        assert policy.targets(rates(10.0), FLEET, now=now).num_convertible == num


def test_a_ratio_that_was_given_stands_and_unlabelled_traffic_measures_nothing() -> None:
    given = TokenScale(TokenScaleParams(profile=A100, burst_ratio=0.2))
    assert after(given, bursty(1000.0, 900.0), 0, 700).num_convertible == 2
    unlabelled = TokenScale(TokenScaleParams(profile=A100))
    assert after(unlabelled, bursty(1000.0, None), 0, 700).num_convertible == 1


def test_all_decoders_together_stay_within_their_most_when_more_are_convertible() -> None:
    policy = TokenScale(TokenScaleParams(profile=A100, max_decode=10))
    busy = replace(bursty(1e6, 5e5), bucket_tokens_per_s=rates(1e6, L_L=1e6).bucket_tokens_per_s)
    before = policy.targets(busy, FLEET, now=0.0)
    assert (before.num_decode, before.num_convertible) == (9, 1)
    targets = after(policy, busy, 1, 620)
    assert (targets.num_decode, targets.num_convertible) == (5, 5)


# --- up at once, down after quiet ----------------------------------------------------------


def test_scale_up_is_at_once() -> None:
    assert first(PLAIN, rates(140_000)).num_prefill == 10


def test_scale_down_comes_only_after_a_quiet_period() -> None:
    policy = TokenScale(replace(PLAIN, hold_down=10.0))
    run(policy, rates(42_000), 0.0, 20)
    assert run(policy, rates(1_000), 20.0, 10).num_prefill == 3
    assert run(policy, rates(1_000), 30.0, 3).num_prefill == 1


def test_one_peak_within_the_quiet_period_keeps_what_carries_it() -> None:
    policy = TokenScale(replace(PLAIN, hold_down=10.0, rate_window=0.1))
    run(policy, rates(42_000), 0.0, 5)
    for tick in range(5, 60):
        peak = 28_000 if tick % 8 == 0 else 1_000
        num_prefill = policy.targets(rates(peak), FLEET, now=float(tick)).num_prefill
    assert num_prefill == 2


def test_the_quiet_period_is_at_least_the_start_up() -> None:
    policy = TokenScale(replace(PLAIN, hold_down=0.0, start_up=20.0))
    run(policy, rates(42_000), 0.0, 3)
    assert run(policy, rates(1_000), 3.0, 20).num_prefill == 3
    assert run(policy, rates(1_000), 23.0, 3).num_prefill == 1


def test_a_measured_start_up_counts_instead_of_the_profiles() -> None:
    policy = TokenScale(replace(PLAIN, hold_down=0.0))
    slow = replace(FLEET, start_up=StartUp(20.0, 3))
    run(policy, rates(42_000), 0.0, 3, fleet=slow)
    assert run(policy, rates(1_000), 3.0, 20, fleet=slow).num_prefill == 3
    assert run(policy, rates(1_000), 23.0, 3, fleet=slow).num_prefill == 1


def test_where_the_next_start_up_is_not_known_it_is_the_profiles_again() -> None:
    waiting = Fleet(PoolLoad(1, backlog_tokens=70_000), PoolLoad(1))
    policy = TokenScale(PLAIN)
    warm = policy.targets(rates(0), replace(waiting, start_up=StartUp(0.1, 1, 1)), now=0.0)
    assert "70000/2)" in warm.reason
    assert "70000/5)" in policy.targets(rates(0), waiting, now=1.0).reason


def test_a_backlog_is_to_be_gone_when_the_instance_ordered_for_it_is_there() -> None:
    waiting = Fleet(PoolLoad(1, backlog_tokens=70_000), PoolLoad(1))
    wanted = {
        seconds: first(PLAIN, rates(0), replace(waiting, start_up=StartUp(seconds, 1, 1)))
        for seconds in (0.1, 5.0, 10.0)
    }
    assert wanted[10.0].num_prefill == wanted[5.0].num_prefill == 1
    assert wanted[0.1].num_prefill == 3, "one that stands by: as soon as rates show it, 2 s"
    assert "70000/2)" in wanted[0.1].reason


def test_n_less_one_must_carry_the_load_with_a_margin() -> None:
    policy = TokenScale(replace(PLAIN, margin=0.1))
    run(policy, rates(28_001), 0.0, 5)
    assert run(policy, rates(27_000), 5.0, 60).num_prefill == 3  # 2 would be 96 % full
    assert run(policy, rates(25_000), 65.0, 60).num_prefill == 2


def test_a_fleet_at_the_edge_does_not_swing() -> None:
    policy, sizes = TokenScale(replace(PLAIN, margin=0.1, rate_window=0.1)), []
    for tick in range(200):
        seen = rates(28_000 + (200 if tick % 30 == 0 else -200))
        sizes.append(policy.targets(seen, FLEET, now=float(tick)).num_prefill)
    assert set(sizes) == {3}


def test_decoders_are_not_taken_away_from_under_the_kv_they_hold() -> None:
    fleet = Fleet(PoolLoad(1), PoolLoad(4, memory=0.6))  # 2.4 instances' KV
    policy = TokenScale(PLAIN)
    run(policy, rates(0, S_S=4 * 23535), 0.0, 5, fleet)
    assert run(policy, rates(0), 5.0, 60, fleet).num_decode == 3


def test_minimum_and_maximum_hold_per_pool() -> None:
    params = replace(PLAIN, min_prefill=2, max_prefill=3, min_decode=4, max_decode=5)
    low = run(TokenScale(params), rates(0), 0.0, 30)
    high = first(params, rates(1e9, S_S=1e9))
    assert (low.num_prefill, low.num_decode) == (2, 4)
    assert (high.num_prefill, high.num_decode) == (3, 5)


# --- missing figures ----------------------------------------------------------------------


def test_zero_traffic_is_a_number_and_the_fleet_goes_to_its_minimum() -> None:
    policy = TokenScale(PLAIN)
    run(policy, rates(140_000, L_L=65_000), 0.0, 5)
    targets = run(policy, Rates(0.0, 0.0, 0.0, (0.0,) * 9), 5.0, 60)
    assert (targets.num_prefill, targets.num_decode) == (1, 1)


def test_stale_rates_hold_the_fleet_and_the_reason_says_so() -> None:
    policy = TokenScale(PLAIN)
    run(policy, rates(140_000, L_L=65_000), 0.0, 5)
    targets = run(policy, None, 5.0, 100)
    assert (targets.num_prefill, targets.num_decode) == (10, 11)
    assert targets.reason == "no fresh rates: holding 10 prefill and 11 decode"


def test_without_any_figure_ever_the_fleet_stays_what_it_is() -> None:
    targets = TokenScale(PLAIN).targets(None, Fleet(PoolLoad(3, 1), PoolLoad(5)), now=0.0)
    assert (targets.num_prefill, targets.num_decode) == (4, 5)


def test_after_stale_rates_the_quiet_period_begins_anew() -> None:
    policy = TokenScale(PLAIN)
    run(policy, rates(42_000), 0.0, 20)
    run(policy, None, 20.0, 60)
    assert run(policy, rates(1_000), 80.0, 10).num_prefill == 3
    assert run(policy, rates(1_000), 90.0, 1).num_prefill == 1


def test_an_unknown_backlog_is_not_zero_pools_grow_and_do_not_shrink() -> None:
    policy = TokenScale(PLAIN)
    policy.targets(rates(42_000), None, now=0.0)
    for tick in range(1, 60):
        targets = policy.targets(rates(1_000), None, now=float(tick))
    assert targets.num_prefill == 3
    assert "backlog unknown: not shrinking" in targets.reason
    assert policy.targets(rates(1e5), None, now=60.0).num_prefill > 3


# --- the rest -----------------------------------------------------------------------------


def test_the_reason_gives_the_inputs() -> None:
    fleet = Fleet(PoolLoad(1, backlog_tokens=500), PoolLoad(1))
    reason = first(
        TokenScaleParams(profile=A100, target_utilisation=0.7), rates(20_000, S_S=47_070), fleet
    ).reason
    assert "prefill (20000 + 500/5) tokens/s over 0.7 × 14000 = 2.05, so 3" in reason
    assert (
        "decode (47070 + 0/5) tokens/s over 0.7 × 23535 = 2.86 less 1 convertible, so 2" in reason
    )


def test_a_velocity_that_drifts_changes_the_fleet_and_is_told() -> None:
    pass_time = load_profile("llama-8b-a100").pass_time
    slow = PassWork(1, 2 * pass_time.seconds(1000, 0, 0, 0), prefill_tokens=1000)
    samples = (WorkSample("w", "prefill", slow),) * 3000
    policy = TokenScale(PLAIN)
    policy.targets(rates(14_000), Fleet(PoolLoad(1), PoolLoad(1), samples=samples), now=0.0)
    targets = policy.targets(rates(14_000), FLEET, now=1.0)
    assert targets.num_prefill == 2
    assert "prefill velocity is -50% off its profile" in targets.reason


def test_prefillers_and_decoders_may_have_profiles_of_their_own() -> None:
    params = replace(
        PLAIN,
        profile=load_profile("deepseek-v3-h800-prefill-dp8"),
        decode_profile=load_profile("deepseek-v3-h800-decode-dp32"),
    )
    assert first(params, rates(80_000)).num_prefill == 2


def test_a_profile_without_the_velocity_is_refused() -> None:
    with pytest.raises(HeadwayError, match="no decode_tokens_per_s"):
        TokenScale(replace(PLAIN, profile=load_profile("deepseek-v3-h800-prefill-dp8")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_utilisation", 0.0),
        ("burst_ratio", 1.1),
        ("rate_window", 0.0),
        ("drain_target", 0.0),
        ("hold_down", -1.0),
        ("margin", 1.0),
        ("memory_ceiling", 0.0),
        ("start_up", float("nan")),
        ("max_prefill", -1),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=name):
        TokenScaleParams(**{name: value})  # type: ignore[arg-type]  # one field by name


def test_a_minimum_over_the_maximum_is_refused() -> None:
    with pytest.raises(HeadwayError, match="min_prefill is 4; it must be at most max_prefill, 3"):
        TokenScaleParams(min_prefill=4, max_prefill=3)


def test_the_meter_counts_arrivals_by_bucket_and_begins_anew() -> None:
    meter = RateMeter(now=0.0)
    assert BUCKET_NAMES[meter.arrived(1000, 300.0)] == "M-M"
    meter.arrived(300, 0.0)  # of unknown length: medium, 350 tokens
    meter.produced(30)
    seen, window = meter.read(now=2.0)
    assert window == 2.0
    assert (seen.requests_per_s, seen.input_tokens_per_s, seen.output_tokens_per_s) == (1, 650, 15)
    by_name = dict(zip(BUCKET_NAMES, seen.bucket_tokens_per_s, strict=True))
    assert {n: v for n, v in by_name.items() if v} == {"S-M": 325.0, "M-M": 650.0}
    assert meter.read(now=3.0)[0] == Rates(0.0, 0.0, 0.0, (0.0,) * 9)


def test_the_meter_counts_no_arrival_of_a_class_that_yields() -> None:
    meter = RateMeter(now=0.0)
    batch = Standing(service=ServiceClass("batch", yields=True))
    assert BUCKET_NAMES[meter.arrived(1000, 300.0, batch)] == "M-M"
    assert meter.read(now=1.0)[0] == Rates(0.0, 0.0, 0.0, (0.0,) * 9)
    meter.arrived(1000, 300.0, Standing(service=ServiceClass("chat")))
    assert meter.read(now=2.0)[0].input_tokens_per_s == 1000


def test_the_meter_tells_labelled_tokens_a_second_or_that_nobody_labels() -> None:
    meter = RateMeter(now=0.0)
    told = [meter.read(now=at, num_burst=so_far)[0] for at, so_far in ((2.0, 50), (4.0, 90))]
    assert [each.burst_tokens_per_s for each in told] == [25.0, 20.0]
    assert meter.read(now=5.0)[0].burst_tokens_per_s is None
