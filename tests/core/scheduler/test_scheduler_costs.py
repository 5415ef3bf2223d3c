"""The scheduler decides by the costs that workers measure, and says by which."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.cluster import Role, UnitId
from headway.core.scheduler.costs import PoolCosts
from headway.core.scheduler.settings import SchedulerSettings
from headway.cost.costs import Constant, Costs, Source
from headway.errors import HeadwayError
from headway.messages import MeasuredCosts, Tuned
from headway.policies.batching.uniboost import UniBoostParams
from headway.policies.dispatch.sbs import SbsParams, StaggeredBatch
from headway.policies.packing import Room
from headway.policies.packing.pbaa import BOOST, Pbaa, PbaaParams
from headway.policies.placement.min_cost import MinCost, MinCostParams
from headway.policies.rescheduling.star import Star, StarParams
from tests.fakes.candidates import Prompt
from tests.fakes.scheduler_text import SchedulerHarness, make_info, short_pass

DECODER, PREFILLER = make_info("d", role=Role.DECODE), make_info("p", role=Role.PREFILL)
MEASURED = MeasuredCosts(0.01, 1e-3, 0.0, 2e-4, 3e-8)


def pool(costs: Costs | None = None) -> PoolCosts:
    return PoolCosts(SchedulerSettings(costs=costs or Costs()))


def test_a_policy_is_told_what_the_profile_says_and_then_what_was_measured() -> None:
    costs, policy = pool(Costs(per_request=1e-3, per_kv_token=1e-6)), MinCost()
    costs.add_reader("m", policy)
    assert policy.constants()[0] == Constant("c", 1e-3, Source.PROFILE)
    costs.heard(DECODER, MEASURED)
    c, d = policy.constants()
    assert (c.value, d.value, c.source) == (2e-4, 3e-8, Source.MEASURED)


def test_nothing_known_is_the_policys_default() -> None:
    costs, policy = pool(), MinCost()
    costs.add_reader("m", policy)
    assert {constant.source for constant in policy.constants()} == {Source.DEFAULT}


def test_what_was_given_stands_over_what_is_measured() -> None:
    costs, policy = pool(), MinCost(MinCostParams(c=5.0))
    costs.add_reader("m", policy)
    costs.heard(DECODER, MEASURED)
    c, d = policy.constants()
    assert (c, d.source) == (Constant("c", 5.0, Source.GIVEN), Source.MEASURED)


def test_each_model_has_costs_of_its_own() -> None:
    costs = pool()
    costs.heard(DECODER, MEASURED)
    assert costs.of("m").per_request == 2e-4
    assert costs.of("other") == Costs()


def test_a_worker_only_tells_what_its_role_does() -> None:
    costs = pool()
    costs.heard(PREFILLER, MEASURED)
    assert not costs.of("m").knows_decode
    assert costs.of("m").first_pass == pytest.approx(0.01 + 1e-3 * PREFILLER.chunk_tokens / 2)


def test_what_the_last_worker_measured_stays_in_use() -> None:
    costs = pool()
    costs.heard(DECODER, MEASURED)
    costs.heard(replace(DECODER, worker_id="d2"), replace(MEASURED, per_request=4e-4))
    assert costs.of("m").per_request == pytest.approx(2e-4)
    costs.forget("d")
    assert costs.of("m").per_request == 4e-4
    costs.forget("d2")
    assert costs.of("m").per_request == 4e-4
    costs.forget("d2")


def test_the_interval_begins_with_what_a_pass_costs_until_one_is_reported() -> None:
    policy = StaggeredBatch()
    policy.join("p")
    assert policy.interval == 0.05
    policy.learn(Costs(first_pass=0.2))
    assert policy.interval == 0.2
    assert policy.constants() == (Constant("T̄", 0.2, Source.PROFILE),)
    policy.ended("p", (), 0.4, now=1.0)
    policy.learn(Costs(first_pass=0.3))
    assert policy.constants() == (Constant("T̄", 0.4, Source.MEASURED),)


def test_moves_and_routing_use_the_link_that_workers_measured_and_say_so() -> None:
    costs, star = pool(Costs(link_bytes_per_s=25e9)), Star()
    costs.add_reader("m", star)
    assert star.constants() == (Constant("link", 25e9, Source.PROFILE),)
    info = replace(PREFILLER, kv_bytes_per_token=1000)
    costs.heard(info, replace(MEASURED, link_per_byte=1e-9))
    (link,) = star.constants()
    assert (link.name, link.source) == ("link", Source.MEASURED)
    assert link.value == pytest.approx(1e9)
    found = costs.of("m")
    assert found.network_tokens_per_s == pytest.approx(1e6)  # V_N
    assert found.source_of("network_tokens_per_s") is Source.MEASURED
    costs.heard(DECODER, replace(MEASURED, link_per_byte=1e-9))
    assert costs.of("m").network_tokens_per_s == pytest.approx(1e6)  # a decoder's is no V_N


def test_a_link_that_was_given_stands_and_an_unknown_one_is_assumed() -> None:
    assert Star().constants() == (Constant("link", 12.5e9, Source.DEFAULT),)
    star = Star(StarParams(link_bytes_per_s=5e9))
    star.learn(Costs(link_bytes_per_s=25e9))
    assert star.constants() == (Constant("link", 5e9, Source.GIVEN),)


def test_a_given_interval_stands() -> None:
    policy = StaggeredBatch(SbsParams(default_pass_time=0.7))
    policy.learn(Costs(first_pass=0.2))
    assert policy.mean_pass_time == 0.7


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 3601.0])
@pytest.mark.parametrize("field", ["base", "per_request", "per_kv_token", "swap_per_token"])
def test_costs_that_are_no_times_are_refused(field: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=field):
        replace(MEASURED, **{field: value})


@pytest.mark.parametrize("value", [5e-324, 1e-300, 3600.0])
@pytest.mark.parametrize("role", list(Role))
def test_no_report_within_the_bounds_stops_the_scheduler(value: float, role: Role) -> None:
    costs, policies = pool(), (MinCost(), StaggeredBatch(), Pbaa(), Star())
    for policy in policies:
        costs.add_reader("m", policy)
    costs.heard(make_info("w", role=role), MeasuredCosts(*[value] * 7))
    costs.heard(make_info("v", role=role), MeasuredCosts(0.0, value))
    assert all(0.0 <= constant.value < inf for constant in costs.constants("m"))


# --- the window's order -----------------------------------------------------------------


def test_the_windows_boost_uses_the_pools_prefill_rate_and_its_fitted_gamma() -> None:
    costs, policy = pool(), Pbaa(PbaaParams(order=BOOST))
    costs.add_reader("m", policy)
    assert [constant.source for constant in policy.constants()] == [Source.DEFAULT] * 2
    costs.heard(PREFILLER, MEASURED)
    policy.tune(0.2, Source.MEASURED)
    gamma, per_token = policy.constants()
    assert gamma == Constant("γ", 0.2, Source.MEASURED)
    chunk = PREFILLER.chunk_tokens
    assert per_token.value == pytest.approx((0.01 + 1e-3 * chunk) / chunk)


def test_the_windows_order_follows_the_constants() -> None:
    """A later short prompt passes, unless tokens are so slow that its boost has faded."""
    policy, room = Pbaa(PbaaParams(order=BOOST)), UnitId("p", 0)
    long, short = Prompt(1, 1000), Prompt(2, 10, 0.5)
    policy.tune(0.5, Source.MEASURED)
    for per_token, first in ((1e-4, 2), (1.0, 1)):
        policy.learn(Costs(prefill_per_token=per_token))
        rooms = [Room(room, 5, 1000, 0, 16, True)]
        assert policy.pack((), (long, short), rooms)[0].request.name == first


def test_a_fitted_gamma_reaches_the_window_and_its_explanations() -> None:
    settings = replace(
        short_pass(),
        gamma_fit=UniBoostParams(),
        dispatch="immediate",
        dispatch_params={},
        packing_params={"order": BOOST},
    )
    scheduler = SchedulerHarness(settings)
    scheduler.connect(make_info("d", role=Role.UNIFIED, chunk=1 << 20))
    for stream_id in range(1, 201):
        scheduler.submit(stream_id)
    for stream_id in range(1, 201):
        scheduler.end_forward("d", finished=(stream_id,), after=0.1)
    scheduler.submit(201)
    (order,) = scheduler.orders("d", Tuned)[-1:]
    used = {c.name: c for c in scheduler.core.status().pools[0].constants}
    assert used["γ"] == Constant("γ", order.gamma, Source.MEASURED)
