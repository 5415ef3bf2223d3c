"""TokenScale's baselines: what each of them counts, and that all hold without figures."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.scaling.aibrix import Aibrix, AibrixParams
from headway.policies.scaling.blitzscale import BlitzScale, BlitzScaleParams
from headway.policies.scaling.distserve import DistServe, DistServeParams
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets
from headway.policies.scaling.utilisation import Utilisation, UtilisationParams
from tests.fakes.policies import make_policy

SCALED = ("aibrix", "blitzscale", "distserve", "tokenscale", "utilisation")


def rps(rate: float) -> Rates:
    return Rates(rate, rate * 1000, rate * 100)


def sizes(targets: Targets) -> tuple[int, int]:
    return targets.num_prefill, targets.num_decode


def fleet(prefill: PoolLoad, decode: PoolLoad) -> Fleet:
    return Fleet(prefill, decode)


# --- aibrix -------------------------------------------------------------------------------


def test_aibrix_sizes_prefill_by_concurrency_7_and_decode_by_70_percent_memory() -> None:
    seen = fleet(PoolLoad(1, num_requests=15), PoolLoad(4, memory=0.9))
    assert sizes(Aibrix().targets(rps(1), seen, now=0.0)) == (3, 6)


def test_aibrix_sees_a_burst_late_because_its_window_is_long() -> None:
    policy = Aibrix(AibrixParams(window=10.0))
    for now in range(10):
        policy.targets(rps(1), fleet(PoolLoad(1, num_requests=7), PoolLoad(1)), now=float(now))
    burst = fleet(PoolLoad(1, num_requests=70), PoolLoad(1))
    assert policy.targets(rps(9), burst, now=10.0).num_prefill == 2
    assert policy.targets(rps(9), burst, now=12.0).num_prefill > 2


# --- blitzscale ---------------------------------------------------------------------------


def test_blitzscale_counts_requests_in_both_pools() -> None:
    seen = fleet(PoolLoad(1, num_requests=15), PoolLoad(1, num_requests=91))
    assert sizes(BlitzScale().targets(rps(1), seen, now=0.0)) == (3, 3)


def test_only_blitzscale_instances_serve_while_they_load() -> None:
    live = [
        name for name in registry.REGISTRY["scaling"] if make_policy("scaling", name).loads_live
    ]
    assert live == ["blitzscale"]


# --- distserve ----------------------------------------------------------------------------


def test_distserve_counts_requests_per_second_whatever_their_size() -> None:
    policy = DistServe()
    small, large = Rates(29, 290, 29), Rates(29, 290_000, 29_000)
    assert sizes(policy.targets(small, Fleet(), now=0.0)) == (3, 2)
    assert sizes(DistServe().targets(large, Fleet(), now=0.0)) == (3, 2)


# --- utilisation --------------------------------------------------------------------------


def test_utilisation_aims_at_70_percent_busy_and_full() -> None:
    seen = fleet(PoolLoad(3, busy=0.9), PoolLoad(5, memory=0.8))
    assert sizes(Utilisation().targets(rps(1), seen, now=0.0)) == (4, 6)


def test_utilisation_is_slow_but_panics() -> None:
    policy = Utilisation(UtilisationParams(stable_window=60.0, panic_window=6.0))
    for now in range(60):
        policy.targets(rps(1), fleet(PoolLoad(2, busy=0.35), PoolLoad(1)), now=float(now))
    busier = fleet(PoolLoad(2, busy=0.9), PoolLoad(1))
    assert policy.targets(rps(1), busier, now=60.0).num_prefill == 2
    full = fleet(PoolLoad(2, busy=1.0), PoolLoad(1))
    for now in range(61, 68):
        targets = policy.targets(rps(1), full, now=float(now))
    assert targets.num_prefill == 3
    assert "(panic)" in targets.reason


# --- fixed --------------------------------------------------------------------------------


def test_fixed_is_fixed() -> None:
    policy: Scaling = make_policy("scaling", "fixed", num_prefill=2, num_decode=3)
    full = fleet(PoolLoad(2, num_requests=1000, busy=1.0), PoolLoad(3, memory=1.0))
    assert sizes(policy.targets(rps(1000), full, now=0.0)) == (2, 3)


# --- all ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCALED)
def test_without_figures_everything_holds_and_the_reason_says_so(name: str) -> None:
    policy: Scaling = make_policy("scaling", name)
    full = fleet(PoolLoad(3, num_requests=20, busy=0.9), PoolLoad(5, num_requests=200, memory=0.65))
    before = sizes(policy.targets(rps(40), full, now=0.0))
    for now in range(1, 300):
        held = policy.targets(None, None, now=float(now))
    assert sizes(held) == before
    assert held.reason.startswith("no fresh ")
    assert f"holding {before[0]} prefill and {before[1]} decode" in held.reason


@pytest.mark.parametrize("name", SCALED)
def test_headroom_is_a_parameter_of_every_system(name: str) -> None:
    seen = fleet(PoolLoad(1, num_requests=20, busy=0.6), PoolLoad(1, num_requests=200, memory=0.6))
    tight = make_policy("scaling", name, target_utilisation=1.0, max_prefill=99, max_decode=99)
    wide = make_policy("scaling", name, target_utilisation=0.5, max_prefill=99, max_decode=99)
    few, many = (sizes(p.targets(rps(400), seen, now=0.0)) for p in (tight, wide))
    assert few[0] < many[0]
    assert few[1] < many[1]


@pytest.mark.parametrize("name", SCALED)
def test_no_traffic_ends_at_the_minimum_after_the_quiet_period(name: str) -> None:
    policy: Scaling = make_policy("scaling", name, min_prefill=2, min_decode=3)
    idle = fleet(PoolLoad(8), PoolLoad(9))
    for now in range(100):
        targets = policy.targets(Rates(0.0, 0.0, 0.0), idle, now=float(now))
    assert targets.num_prefill == 2
    assert targets.num_decode == 3


@pytest.mark.parametrize("name", ["aibrix", "blitzscale", "distserve", "utilisation"])
def test_a_pool_of_none_wakes_up_for_its_first_request(name: str) -> None:
    policy: Scaling = make_policy("scaling", name, min_prefill=0, min_decode=0)
    waiting = fleet(PoolLoad(0, num_requests=1), PoolLoad(0, num_requests=1))
    assert sizes(policy.targets(rps(0.1), waiting, now=0.0)) == (1, 1)


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        (AibrixParams, "prefill_concurrency", 0.0),
        (AibrixParams, "decode_memory", 1.5),
        (BlitzScaleParams, "decode_requests", -1.0),
        (DistServeParams, "decode_per_s", float("nan")),
        (UtilisationParams, "panic_window", 90.0),
        (UtilisationParams, "panic_factor", 0.5),
        (DistServeParams, "target_utilisation", 1.1),
    ],
)
def test_a_parameter_out_of_range_is_refused(params: type, name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=name):
        params(**{name: value})
