"""``scaling=headway``: unified instances until a split needs fewer, and why."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.core.autoscaler.budget import Budget
from headway.core.autoscaler.core import AutoscalerCore, RateReport, role_changes
from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.cost.profile import load_profile
from headway.messages import PassWork
from headway.policies.scaling.headway import HeadwayScaling, TopologyParams
from headway.policies.scaling.meter import RateMeter
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Targets, WorkSample
from headway.policies.scaling.tokenscale import TokenScale, TokenScaleParams
from headway.service_class import ServiceClass, Standing

A100 = load_profile("llama-8b-a100")
FOUR = Fleet(unified=PoolLoad(4))
PARAMS = TopologyParams(
    profile=A100, convertibles=False, max_prefill=4, max_decode=4, max_unified=4, start_up=5.0
)
STRICT, LOOSE = 0.025, 0.1


def rates(
    per_s: float = 45.0,
    prompt: int = 512,
    output: int = 32,
    limit: float | None = None,
    first: float | None = None,
) -> Rates:
    buckets = [0.0] * NUM_BUCKETS
    buckets[Buckets().of(prompt, output)] = per_s * (prompt + output)
    return Rates(per_s, per_s * prompt, per_s * output, tuple(buckets), None, limit, first)


def policy(params: TopologyParams = PARAMS, fleet: Fleet = FOUR) -> HeadwayScaling:
    made = HeadwayScaling(params)
    made.begin(fleet)
    return made


def run(made: HeadwayScaling, seen: Rates | None, start: int, seconds: int) -> list[Targets]:
    """Return the decisions of one second each."""
    return [made.targets(seen, FOUR, now=float(now)) for now in range(start, start + seconds)]


def roles(targets: Targets) -> tuple[int, int, int]:
    return targets.num_prefill, targets.num_decode, targets.num_unified


# --- the choice ---------------------------------------------------------------------------


def test_it_begins_with_unified_instances() -> None:
    assert roles(policy(fleet=Fleet()).targets(rates(), None, now=0.0))[:2] == (0, 0)


def test_without_a_promise_or_with_a_loose_one_it_stays_unified() -> None:
    for limit in (None, LOOSE):
        assert {roles(t)[:2] for t in run(policy(), rates(limit=limit), 0, 200)} == {(0, 0)}


def test_it_splits_where_a_strict_promise_needs_more_unified_instances() -> None:
    last = run(policy(), rates(limit=STRICT), 0, 60)[-1]
    # 45 requests/s x 39.3 ms = 1.77, 9.2 ms = 0.41 and 79.7 ms = 3.59 instances, over 0.85
    assert roles(last) == (3, 1, 0)


def test_a_split_comes_only_after_a_quiet_period() -> None:
    decided = run(policy(), rates(limit=STRICT), 0, 30)
    split_at = next(now for now, targets in enumerate(decided) if targets.num_prefill)
    assert split_at == 10  # hold_down


def test_it_becomes_unified_again_when_nobody_is_promised_that_any_more() -> None:
    made = policy()
    run(made, rates(limit=STRICT), 0, 60)
    calm = run(made, rates(), 60, 120)
    assert roles(calm[0]) == (3, 1, 0)
    assert roles(calm[-1])[:2] == (0, 0)


def test_a_promise_that_no_pass_keeps_decides_nothing() -> None:
    last = run(policy(), rates(limit=0.005), 0, 60)[-1]
    assert roles(last)[:2] == (0, 0)
    assert "which no pass keeps" in last.reason


@pytest.mark.parametrize(
    ("most", "limit", "is_kept"),
    # 3.59 unified instances at 25 ms, full ones; at 12.5 ms 47 or 2 + 6, at 12.2 ms 114 or 2 + 13
    [(4, 0.025, True), (4, 0.0125, True), (4, 0.0122, False), (10, 0.0122, True)],
)
def test_a_limit_far_beyond_all_instances_allowed_decides_nothing(
    most: int, limit: float, is_kept: bool
) -> None:
    made = policy(replace(PARAMS, max_prefill=most, max_decode=most, max_unified=most))
    last = run(made, rates(limit=limit), 0, 60)[-1]
    assert ("which not even all instances allowed keep" in last.reason) is not is_kept
    if not is_kept:
        assert roles(last) == roles(run(policy(), rates(), 0, 60)[-1])


def test_a_limit_counts_again_once_all_instances_allowed_keep_it() -> None:
    made, is_dropped = policy(), {}
    for start, per_s in ((0, 45.0), (100, 20.0), (200, 10.0)):  # 13, 6 and 3 decoders
        last = run(made, rates(per_s, limit=0.0122), start, 100)[-1]
        is_dropped[per_s] = "not even" in last.reason
    assert is_dropped == {45.0: True, 20.0: True, 10.0: False}


@example(per_s=50.0, more=1.1, limit=STRICT, output=32)  # two prefillers carry 51/s
@given(
    per_s=st.floats(1, 300),
    more=st.floats(1, 3),
    limit=st.floats(2 * A100.pass_time.base, 0.2),
    output=st.integers(1, 500),
)
def test_more_load_of_a_limit_of_two_passes_never_needs_a_smaller_fleet(
    per_s: float, more: float, limit: float, output: int
) -> None:
    params = replace(PARAMS, max_prefill=2, max_decode=2)
    less, greater = (
        policy(params, Fleet()).targets(rates(rate, output=output, limit=limit), now=0.0)
        for rate in (per_s, more * per_s)
    )
    assert less.num_unified <= greater.num_unified


@pytest.mark.parametrize(
    ("first", "keep", "said"),
    [
        (None, "38% and 80%", "the first token within 2 s (by prompt length)"),
        (5.0, "89% and 95%", "the first token within 5 s (a class's promise)"),
    ],
)
def test_where_no_topology_is_enough_the_first_tokens_that_are_promised_decide(
    first: float | None, keep: str, said: str
) -> None:
    made = policy()
    last = run(made, rates(3.8, 8192, 128, 0.05, first), 0, 60)[-1]
    assert f"4 keep {keep} in time, {said}" in last.reason
    assert bool(last.num_prefill) is (first is None)
    assert ("first-token limit" in [each.name for each in made.constants()]) is bool(first)


def test_a_limit_that_was_given_stands_over_the_classes() -> None:
    made = policy(replace(PARAMS, inter_token_limit=STRICT))
    assert roles(run(made, rates(limit=LOOSE), 0, 60)[-1]) == (3, 1, 0)


def test_it_goes_on_with_the_split_that_there_is() -> None:
    made = policy(fleet=Fleet(PoolLoad(3), PoolLoad(1)))
    assert roles(made.targets(rates(limit=STRICT), Fleet(PoolLoad(3), PoolLoad(1)), now=0.0)) == (
        *(3, 1),
        0,
    )


def test_the_pace_of_live_passes_counts() -> None:
    slow = WorkSample("w", "decode", PassWork(100, 2 * 100 * 0.022, 0, 0, 6400, 6400 * 528))
    fleet = replace(FOUR, samples=[slow])
    made = policy(replace(PARAMS, velocity_weight=0.5))
    for now in range(60):
        last = made.targets(rates(limit=0.05), fleet, now=float(now))
    assert "pass times measured" in last.reason
    assert last.num_prefill  # 50 ms are now as strict as 25 ms were


def test_without_rates_everything_stays() -> None:
    made = policy()
    run(made, rates(limit=STRICT), 0, 60)
    assert roles(made.targets(None, FOUR, now=61.0)) == (3, 1, 0)
    assert roles(policy().targets(None, FOUR, now=0.0)) == (0, 0, 4)


def test_the_reason_has_both_sides_and_their_sources() -> None:
    last = run(policy(), rates(limit=STRICT), 0, 60)[-1]
    for said in (
        "split: within 25 ms between tokens (a class's promise)",
        "pass times by profile",
        "unified 4.22 = 5",
        "split 2.08 + 0.50 = 3 + 1",
    ):
        assert said in last.reason


# --- how many -----------------------------------------------------------------------------


def test_unified_instances_follow_what_arrives_and_what_waits() -> None:
    assert roles(run(policy(), rates(per_s=10.0), 0, 60)[-1]) == (0, 0, 1)
    waiting = replace(FOUR, prefill=PoolLoad(0, backlog_tokens=100_000))
    # 10 requests/s need 0.52; 100,000 tokens in 5 s 1.42/0.85 = 1.67
    assert roles(policy().targets(rates(per_s=10.0), waiting, now=0.0)) == (0, 0, 4)
    made = policy(fleet=Fleet(unified=PoolLoad(1)))
    assert roles(made.targets(rates(per_s=10.0), waiting, now=0.0)) == (0, 0, 3)


@pytest.mark.parametrize(("network", "num_prefill"), [(7200.0, 4), (1e6, 3), (None, 3)])
def test_a_network_that_is_slower_than_passes_needs_more_prefillers(
    network: float | None, num_prefill: int
) -> None:
    fleet = Fleet(PoolLoad(3), PoolLoad(1), network_tokens_per_s=network)
    made, seen = policy(fleet=fleet), rates(limit=STRICT)  # 23,040 prompt tokens/s
    last = [made.targets(seen, fleet, now=float(now)) for now in range(60)][-1]
    assert roles(last) == (num_prefill, 1, 0)
    assert ("(V_N, measured)" in last.reason) is (num_prefill == 4)


def test_without_unified_ones_it_is_tokenscale() -> None:
    plain = TokenScale(TokenScaleParams(profile=A100))
    ours = HeadwayScaling(TopologyParams(profile=A100))
    fleet = Fleet(PoolLoad(1), PoolLoad(2))
    for now in range(30):
        seen = rates(per_s=10.0 + now, limit=STRICT)
        want = plain.targets(seen, fleet, now=float(now))
        assert roles(ours.targets(seen, fleet, now=float(now))) == roles(want)


# --- hysteresis ---------------------------------------------------------------------------

TRAFFIC = st.builds(
    rates,
    st.floats(0, 300),
    st.integers(1, 16_000),
    st.integers(1, 2000),
    st.none() | st.floats(0.005, 0.5),
)


@settings(max_examples=20)
@given(seen=TRAFFIC, noise=st.lists(st.floats(0.97, 1.03), min_size=200, max_size=200))
def test_constant_load_changes_the_topology_once_at_most(seen: Rates, noise: list[float]) -> None:
    """Whatever the load, and though its figures vary by some per cent."""
    made, was_split = policy(), []
    for now, factor in enumerate(noise):
        noisy = Rates(
            seen.requests_per_s * factor,
            seen.input_tokens_per_s * factor,
            seen.output_tokens_per_s * factor,
            tuple(each * factor for each in seen.bucket_tokens_per_s),
            None,
            seen.inter_token_limit,
        )
        was_split.append(bool(made.targets(noisy, FOUR, now=float(now)).num_prefill))
    changes = sum(a != b for a, b in pairwise(was_split))
    assert changes <= 1


@given(seen=st.lists(TRAFFIC, min_size=1, max_size=30))
def test_every_answer_is_one_topology_within_its_bounds(seen: list[Rates]) -> None:
    made = policy()
    for now, each in enumerate(seen):
        targets = made.targets(each, FOUR, now=10.0 * now)
        assert targets.reason
        if targets.num_unified:
            assert (targets.num_prefill, targets.num_decode) == (0, 0)
            assert targets.num_unified <= 4
        else:
            assert 1 <= targets.num_prefill <= 4
            assert 1 <= targets.num_decode <= 4


# --- around it ----------------------------------------------------------------------------


def promises(seen: Rates) -> tuple[float | None, float | None]:
    return seen.inter_token_limit, seen.first_token_limit


def test_gateways_tell_the_strictest_promises_of_what_came() -> None:
    meter = RateMeter(now=0.0)
    for tpot, ttft in ((0.1, 5.0), (None, None), (0.025, 9.0)):
        meter.arrived(10, 10, Standing(service=ServiceClass("c", tpot=tpot, ttft=ttft)))
    meter.arrived(10, 10)
    assert promises(meter.read(now=1.0)[0]) == (0.025, 5.0)
    assert promises(meter.read(now=2.0)[0]) == (None, None)


def test_the_strictest_promises_of_all_gateways_count() -> None:
    core = AutoscalerCore(policy(), now=0.0)
    for gateway_id, tpot, ttft in (("a", 0.1, None), ("b", 0.05, 5.0), ("c", None, 2.0)):
        seen = rates(limit=tpot, first=ttft)
        core.handle(RateReport.of(gateway_id, seen, 1.0, 0.0), now=0.0)
    (decided,) = core.wake(now=1.0)
    assert decided.rates is not None
    assert promises(decided.rates) == (0.05, 2.0)


def test_who_yields_is_promised_nothing_that_counts() -> None:
    meter = RateMeter(now=0.0)
    yielding = ServiceClass("c", tpot=0.01, ttft=0.1, yields=True)
    meter.arrived(10, 10, Standing(service=yielding))
    assert promises(meter.read(now=1.0)[0]) == (None, None)


def test_unified_instances_are_cut_to_the_budget() -> None:
    cut = Budget(3).fit(Targets(0, 0, 0, 5, "why"))
    assert (cut.num_unified, cut.reason) == (3, "why; cut from 5 to the budget of 3")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"unified": 4, "prefill": 0, "decode": 0}, {"unified": 0, "prefill": 3, "decode": 1}),
        ({"unified": 0, "prefill": 3, "decode": 1}, {"unified": 4, "prefill": 0, "decode": 0}),
    ],
)
def test_a_change_of_topology_starts_and_ends_no_instance(
    found: dict[str, int], wanted: dict[str, int]
) -> None:
    after = dict(found)
    for source, target, number in role_changes(found, wanted):
        after[source] -= number
        after[target] += number
    assert after == wanted
