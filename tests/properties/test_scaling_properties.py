"""Scaling, bursts and TokenScale's routing: what holds whatever the traffic."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.cost.pass_time import EACH_TERM, PassTime, Share
from headway.policies.burst.dual_signal import DualSignal, DualSignalParams
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.tokenscale import TokenScaleRouting
from headway.policies.scaling.meter import RateMeter
from headway.policies.scaling.pool import Bounds, Pool
from headway.policies.scaling.protocol import Fleet, PoolLoad, Rates, Scaling, Targets
from headway.policies.scaling.tokenscale import TokenScale, TokenScaleParams
from tests.fakes.candidates import Prompt
from tests.fakes.policies import A100, make_policy
from tests.fakes.tokenscale import PARAMS, PROFILE

POLICIES = ("aibrix", "blitzscale", "distserve", "tokenscale", "utilisation")
TOKENS = st.floats(0, 1e6)
RATES = st.builds(
    Rates,
    st.floats(0, 1000),
    TOKENS,
    TOKENS,
    st.one_of(st.just(()), st.lists(TOKENS, min_size=NUM_BUCKETS, max_size=NUM_BUCKETS)),
)
SHARE = st.floats(0, 1)
POOLS = st.builds(
    PoolLoad,
    st.integers(0, 20),
    st.integers(0, 5),
    st.integers(0, 500),
    st.integers(0, 10**6),
    SHARE,
    SHARE,
)
FLEETS = st.builds(Fleet, POOLS, POOLS)
STEPS = st.lists(
    st.tuples(st.floats(0.01, 20), st.none() | RATES, st.none() | FLEETS), min_size=1, max_size=25
)
STEP = tuple[float, Rates | None, Fleet | None]


def run(policy: Scaling, steps: list[STEP], start: float = 0.0) -> list[Targets]:
    now, answers = start, []
    for gap, rates, fleet in steps:
        now += gap
        answers.append(policy.targets(rates, fleet, now=now))
    return answers


# --- any policy ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
@given(steps=STEPS, bounds=st.tuples(*[st.integers(0, 4)] * 4))
def test_every_answer_is_within_the_bounds(
    name: str, steps: list[STEP], bounds: tuple[int, ...]
) -> None:
    least_prefill, prefill_range, least_decode, decode_range = bounds
    policy: Scaling = make_policy(
        "scaling",
        name,
        min_prefill=least_prefill,
        max_prefill=least_prefill + prefill_range,
        min_decode=least_decode,
        max_decode=least_decode + decode_range,
    )
    for targets in run(policy, steps):
        assert least_prefill <= targets.num_prefill <= least_prefill + prefill_range
        in_all = targets.num_decode + targets.num_convertible
        assert least_decode <= in_all <= least_decode + decode_range
        assert targets.num_decode >= 0


@pytest.mark.parametrize("name", POLICIES)
@given(steps=STEPS)
def test_the_same_figures_give_the_same_answers(name: str, steps: list[STEP]) -> None:
    first, second = (run(make_policy("scaling", name), steps) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", POLICIES)
@given(steps=STEPS)
def test_no_figure_changes_nothing(name: str, steps: list[STEP]) -> None:
    policy: Scaling = make_policy("scaling", name)
    last = run(policy, steps)[-1]
    held = policy.targets(None, None, now=1e6)
    assert (held.num_prefill, held.num_decode) == (last.num_prefill, last.num_decode)


@pytest.mark.parametrize("name", POLICIES)
@given(steps=STEPS)
def test_every_answer_has_a_reason(name: str, steps: list[STEP]) -> None:
    assert all(targets.reason for targets in run(make_policy("scaling", name), steps))


# --- tokenscale ---------------------------------------------------------------------------


@given(rates=RATES, fleet=FLEETS, more=st.floats(1, 10))
def test_more_tokens_never_need_fewer_instances(rates: Rates, fleet: Fleet, more: float) -> None:
    # per bucket: how a mean request is classed may change with its size
    by_bucket = rates.bucket_tokens_per_s or (rates.output_tokens_per_s,) * NUM_BUCKETS
    less = replace(rates, bucket_tokens_per_s=tuple(by_bucket))
    grown = Rates(
        rates.requests_per_s,
        rates.input_tokens_per_s * more,
        rates.output_tokens_per_s,
        tuple(tokens * more for tokens in by_bucket),
    )
    empty = Fleet(replace(fleet.prefill, backlog_tokens=0), replace(fleet.decode, backlog_tokens=0))
    few = make_policy("scaling", "tokenscale").targets(less, empty, now=0.0)
    many = make_policy("scaling", "tokenscale").targets(grown, empty, now=0.0)
    assert few.num_prefill <= many.num_prefill
    assert few.num_decode <= many.num_decode


@given(rates=RATES)
def test_what_is_planned_carries_what_arrives_with_its_headroom(rates: Rates) -> None:
    params = TokenScaleParams(
        profile=A100, convertibles=False, max_prefill=10_000, max_decode=10_000
    )
    targets = TokenScale(params).targets(rates, Fleet(PoolLoad(1), PoolLoad(1)), now=0.0)
    velocity = 14_000 * params.target_utilisation
    assert targets.num_prefill * velocity >= rates.input_tokens_per_s * (1 - 1e-6)
    assert (targets.num_prefill - 1) * velocity < max(rates.input_tokens_per_s, 1)


# --- one pool -----------------------------------------------------------------------------

NEEDS = st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 30)), min_size=1, max_size=40)


@given(NEEDS, st.floats(0, 15), st.floats(0, 0.3))
def test_a_pool_grows_at_once_and_shrinks_only_to_what_carried_all_of_late(
    steps: list[tuple[float, float]], hold_down: float, margin: float
) -> None:
    pool, bounds = Pool(Bounds(1, 20, hold_down, margin)), (1, 20)
    now, seen, before = 0.0, list[tuple[float, float]](), 1
    for gap, need in steps:
        now += gap
        seen.append((now, need))
        size = pool.decide(need, 1, now=now)
        assert size >= min(bounds[1], ceil(need - 1e-9))
        if size < before:
            assert now - seen[0][0] >= hold_down
            recent = max(n for at, n in seen if at >= now - hold_down)
            assert size == bounds[0] or recent <= size * (1 - margin) + 1e-6 or size == bounds[1]
        before = size


@given(NEEDS, st.floats(0, 20))
def test_a_pool_never_shrinks_below_what_it_holds(
    steps: list[tuple[float, float]], held: float
) -> None:
    pool, now, before = Pool(Bounds(0, 20, 1.0, 0.0)), 0.0, 0
    for gap, need in steps:
        now += gap
        size = pool.decide(need, 0, now=now, held=held)
        assert size >= min(before, ceil(held - 1e-9))
        before = size


@given(NEEDS)
def test_without_leave_to_shrink_a_pool_only_grows(steps: list[tuple[float, float]]) -> None:
    pool, now, sizes = Pool(Bounds(1, 20, 0.0, 0.0)), 0.0, [1]
    for gap, need in steps:
        now += gap
        sizes.append(pool.decide(need, 1, now=now, may_shrink=False))
    assert sizes == sorted(sizes)


# --- buckets and the meter ----------------------------------------------------------------


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_bucket_is_the_nearest_of_all_in_log_space(num_input: int, num_output: int) -> None:
    buckets = Buckets()
    found = buckets.lengths(buckets.of(num_input, num_output))
    for length, edges, chosen in (
        (num_input, buckets.input_tokens, found[0]),
        (num_output, buckets.output_tokens, found[1]),
    ):
        distance = abs(log(length) - log(chosen))
        assert distance <= min(abs(log(length) - log(edge)) for edge in edges) + 1e-12


@given(st.lists(st.tuples(st.integers(1, 10**5), st.floats(0, 10**5)), max_size=50))
def test_the_meters_buckets_hold_all_that_arrived(arrivals: list[tuple[int, float]]) -> None:
    meter, buckets, tokens = RateMeter(now=0.0), Buckets(), 0.0
    for num_input, num_output in arrivals:
        bucket = meter.arrived(num_input, num_output)
        tokens += num_input + (num_output or buckets.lengths(bucket)[1])
    rates, window = meter.read(now=4.0)
    assert sum(rates.bucket_tokens_per_s) * window == pytest.approx(tokens)
    assert rates.requests_per_s * window == pytest.approx(len(arrivals))


# --- pass time ----------------------------------------------------------------------------

SHARES = st.lists(st.builds(Share, *[st.integers(0, 10**5)] * 4), min_size=1, max_size=6)


@given(SHARES)
def test_one_slow_unit_holds_all_and_gated_terms_hold_no_less(shares: list[Share]) -> None:
    slowest = PassTime(0.01, 1e-6, 1e-5, 1e-8, 1e-10)
    gated = replace(slowest, gate=EACH_TERM)
    assert slowest.lock_step(shares) == max(slowest.seconds(*share) for share in shares)
    assert gated.lock_step(shares) >= slowest.lock_step(shares) - 1e-12
    assert gated.lock_step(shares[:1]) == slowest.lock_step(shares[:1])


# --- bursts -------------------------------------------------------------------------------

ARRIVALS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 10_000)), max_size=80)


@given(ARRIVALS, st.floats(1, 3), st.floats(0.01, 0.5))
def test_what_is_not_labelled_is_never_more_than_the_mean_allows_and_one_depth(
    arrivals: list[tuple[float, int]], factor: float, chance: float
) -> None:
    params = DualSignalParams(factor=factor, chance=chance)
    detector, now, seen = DualSignal(params), 0.0, list[tuple[float, int]]()
    requests, tokens = 0.0, 0.0  # unlabelled, ahead of the allowance
    for gap, num_tokens in arrivals:
        now += gap
        seen.append((now, num_tokens))
        label = detector.arrived(num_tokens, now=now)
        sizes = [size for _, size in in_mean(seen)]
        span = min(max(now - seen[0][0], 1.0), max(60.0, now - in_mean(seen)[0][0]))
        requests = max(0.0, requests - factor * gap * len(sizes) / span)
        tokens = max(0.0, tokens - factor * gap * sum(sizes) / span)
        if label.is_burst:
            continue
        requests, tokens = requests + 1, tokens + num_tokens
        if now - seen[0][0] < 1.0:
            requests, tokens = 0.0, 0.0  # there is no mean yet
            continue
        most_tokens = params.depth * sum(size**2 for size in sizes) / sum(sizes)
        assert requests <= params.depth + 1 + 1e-6
        assert tokens <= most_tokens + num_tokens + 1e-3


def in_mean(seen: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the arrivals of the last minute, at least the last thirty of the last ten."""
    now = seen[-1][0]
    lately = [each for each in seen if each[0] > now - 60.0 + 1e-6]
    return max(lately, [each for each in seen[-30:] if each[0] > now - 600.0 + 1e-6], key=len)


@given(ARRIVALS)
def test_a_request_is_labelled_only_if_a_signal_is_over_what_it_may_be(
    arrivals: list[tuple[float, int]],
) -> None:
    detector, now = DualSignal(), 0.0
    for gap, tokens in arrivals:
        now += gap
        label = detector.arrived(tokens, now=now)
        assert label.is_burst == (label.signal != "")
        assert label.is_burst == (label.ahead > label.allowed)


# --- routing ------------------------------------------------------------------------------

PROMPTS = st.lists(
    st.tuples(st.integers(1, 9000), st.floats(0, 3), st.booleans()), max_size=20
).map(lambda rows: [Prompt(n, *row) for n, row in enumerate(rows)])
LOADS = st.lists(
    st.tuples(st.integers(0, 6000), st.booleans(), st.integers(0, 1200), st.integers(0, 9000)),
    max_size=6,
).map(
    lambda rows: [
        InstanceLoad(
            f"w{n}",
            tokens,
            tokens,
            1,
            1,
            tokens < 2048,
            free > 0,
            Role.CONVERTIBLE if converts else Role.PREFILL,
            batch,
            free,
            chunk_tokens=1000,
        )
        for n, (tokens, converts, batch, free) in enumerate(rows)
    ]
)


@settings(max_examples=300)
@given(LOADS, PROMPTS)
def test_routing_gives_each_prompt_once_to_an_instance_that_meets_its_slo(
    loads: list[InstanceLoad], prompts: list[Prompt]
) -> None:
    policy, now = TokenScaleRouting(PARAMS), 3.0
    turns = policy.turns(loads, len(prompts), now=now, waiting=prompts)
    given_keys = [key for turn in turns for key in turn.keys or ()]
    assert len(given_keys) == len(set(given_keys))
    by_id = {load.worker_id: load for load in loads}
    ahead = {load.worker_id: load.queued_tokens for load in loads}
    kv = {load.worker_id: 0 for load in loads}
    routed = {key: turn for turn in turns for key in turn.keys or ()}
    for prompt in prompts:
        turn = routed.get(prompt.key)
        if turn is None:
            continue
        load = by_id[turn.worker_id]
        kv[turn.worker_id] += prompt.num_tokens
        assert kv[turn.worker_id] <= load.free_tokens
        if turn.rule == "available":
            assert load.has_capacity
            continue
        is_convertible = load.role is Role.CONVERTIBLE
        assert is_convertible == (turn.rule == "convertible")
        velocity = (
            PROFILE.convertible_velocity(load.num_decoding, 0.1)
            if is_convertible
            else PROFILE.prefill_velocity()
        )
        ahead[turn.worker_id] += prompt.num_tokens
        left = policy.ttft_slo(prompt.num_tokens) - (now - prompt.arrival_at)
        assert ahead[turn.worker_id] / velocity <= left + 1e-9


@given(LOADS, PROMPTS)
def test_routing_does_not_depend_on_the_order_of_instances(
    loads: list[InstanceLoad], prompts: list[Prompt]
) -> None:
    first = TokenScaleRouting(PARAMS).turns(loads, len(prompts), now=3.0, waiting=prompts)
    second = TokenScaleRouting(PARAMS).turns(loads[::-1], len(prompts), now=3.0, waiting=prompts)
    assert first == second
