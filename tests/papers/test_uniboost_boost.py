"""UniBoost's priority: Φ = a − b_γ(w̃), its limits, its effective work, and its arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import exp, inf, isfinite, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cost.costs import Costs, Source
from headway.errors import HeadwayError
from headway.policies.batching.boost import BoostParams, ServiceTime, boost, boosted, effective_work
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.las import Las
from headway.policies.batching.uniboost_base import UniBoostBase
from headway.policies.batching.uniboost_memguard import MemGuardParams, UniBoostMemGuard
from tests.fakes.candidates import Queued, decoding, served

GAMMAS = [10.0**power for power in range(-9, 10)]
TOKENS = [10**power for power in range(8)]
SECONDS_PER_TOKEN = [1e-6, 1e-3, 1.0]
CANDIDATES = st.lists(
    st.builds(
        decoding, st.just(0), st.integers(0, 10**7), st.floats(0, 2e9), st.integers(0, 10**5)
    ),
    max_size=12,
).map(lambda rows: [decoding(n, c.num_output_tokens, c.arrival_at) for n, c in enumerate(rows)])


# --- the formula ------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "work"), [(0.05, 3.0), (1.0, 1.0), (2.0, 0.1), (0.5, 20.0)])
def test_the_boost_is_the_printed_formula(gamma: float, work: float) -> None:
    assert boost(work, gamma) == pytest.approx(log(1 / (1 - exp(-gamma * work))) / gamma)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("seconds", SECONDS_PER_TOKEN)
def test_the_boost_is_a_number_and_never_grows_with_work(gamma: float, seconds: float) -> None:
    boosts = [boost(tokens * seconds, gamma) for tokens in TOKENS]
    assert all(isfinite(b) and b >= 0.0 for b in boosts)
    assert boosts == sorted(boosts, reverse=True)


@given(gamma=st.floats(1e-9, 1e9), tokens=st.integers(1, 10**7), arrival_at=st.floats(0, 2e9))
def test_a_priority_is_never_nan(gamma: float, tokens: int, arrival_at: float) -> None:
    phi, tie = boosted(arrival_at, tokens * 1e-3, gamma)
    assert isfinite(phi)
    assert tie == arrival_at
    assert phi <= arrival_at


def test_small_exponents_lose_no_digits() -> None:
    work, gamma = 1e-3, 1e-9  # γw = 1e-12: 1 − e^(−γw) would keep four digits
    exponent = Fraction(gamma) * Fraction(work)
    one_minus = float(exponent - exponent**2 / 2)
    assert boost(work, gamma) == pytest.approx(-log(one_minus) / gamma, rel=1e-14)


def test_large_exponents_lose_no_digits() -> None:
    assert boost(40.0, 1.0) == pytest.approx(exp(-40.0), rel=1e-12)
    assert boost(1e7, 1e9) == 0.0


def test_the_two_forms_meet_where_they_change() -> None:
    below, above = boost(log(2) * (1 - 1e-9), 1.0), boost(log(2) * (1 + 1e-9), 1.0)
    assert below == pytest.approx(above, rel=1e-8)
    assert below > above


# --- the limits -------------------------------------------------------------------------


@given(candidates=CANDIDATES)
def test_an_infinite_gamma_is_first_come_first_served_exactly(candidates: list[Queued]) -> None:
    policy = UniBoostBase(BoostParams(gamma=inf, seconds_per_token=1e-3))
    assert served(policy, candidates) == served(Fcfs(), candidates)


@given(candidates=CANDIDATES)
def test_a_gamma_of_zero_is_least_attained_service_exactly(candidates: list[Queued]) -> None:
    policy = UniBoostBase(BoostParams(gamma=0.0, seconds_per_token=1e-3))
    floored = [c for c in candidates if c.attained_tokens >= 1]
    assert served(policy, floored) == served(Las(), floored)


def test_what_has_waited_long_overtakes_what_is_small() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05, seconds_per_token=1e-3))
    old = Queued(1, arrival_at=0.0, num_prompt_tokens=4000)
    for arrival_at, first in ((1.0, 2), (200.0, 1)):
        assert served(policy, [old, Queued(2, arrival_at, num_prompt_tokens=10)])[0] == first


@pytest.mark.parametrize("gamma", [-1.0, 1e-10, 1e10, float("nan")])
def test_a_gamma_out_of_range_is_refused_with_the_range(gamma: float) -> None:
    with pytest.raises(HeadwayError, match="0, inf, or from 1e-9 to 1e9 per second"):
        BoostParams(gamma=gamma)


# --- effective work, in tokens and in seconds -------------------------------------------


def test_effective_work_is_what_was_attained_or_has_to_be_prefilled() -> None:
    assert effective_work(Queued(num_prompt_tokens=100, attained_tokens=30)) == 100
    assert effective_work(Queued(num_prompt_tokens=100, attained_tokens=130)) == 130


def test_cached_prompt_tokens_are_no_work() -> None:
    assert effective_work(Queued(num_prompt_tokens=100, num_cached_tokens=80)) == 20


def test_effective_work_is_at_least_one_token() -> None:
    assert effective_work(Queued(num_prompt_tokens=100, num_cached_tokens=100)) == 1
    assert effective_work(Queued(num_prompt_tokens=10, num_cached_tokens=20)) == 1


def test_a_decode_pool_counts_the_tokens_that_it_attained() -> None:
    handed = Queued(num_prompt_tokens=100, num_cached_tokens=100, attained_tokens=7)
    assert effective_work(handed) == 7


def test_each_chunk_advances_the_work() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05, seconds_per_token=1e-3))
    ranked = policy.rank(decoding(1, 50, prompt=100), now=0.0)
    assert ranked.until_tokens == 150  # 149 attained: the next token moves it


def test_tokens_become_seconds_by_the_pool_s_service_time() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05, seconds_per_token=2e-3))
    phi = policy.rank(Queued(arrival_at=5.0, num_prompt_tokens=1000), now=9.0).rank[0]
    assert phi == 5.0 - boost(2.0, 0.05)


def test_a_prompt_token_weighs_its_own_time_and_a_decoded_one_its_own() -> None:
    policy = UniBoostMemGuard(MemGuardParams(gamma=0.05))
    policy.learn(Costs(prefill_per_token=1e-4, decode_per_token=2e-3))
    candidate = decoding(1, 512, prompt=1000)
    assert policy.phi(candidate)[0] == pytest.approx(-boost(0.1 + 512 * 2e-3, 0.05))
    prompt = Queued(num_prompt_tokens=1000)
    assert policy.phi(prompt)[0] == pytest.approx(-boost(0.1, 0.05))
    shown = {each.name: each.value for each in policy.constants()}
    assert (shown["prompt token"], shown["output token"]) == (1e-4, 2e-3)


def test_a_token_whose_time_is_unknown_takes_the_mean_and_a_given_time_stands() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05))
    policy.passed(0.1, 100)
    policy.learn(Costs(prefill_per_token=1e-4))
    assert policy.seconds(decoding(1, 11, prompt=100), 110) == pytest.approx(0.01 + 10 * 1e-3)
    given = UniBoostBase(BoostParams(gamma=0.05, seconds_per_token=3e-3))
    given.learn(Costs(prefill_per_token=1e-4, decode_per_token=2e-3))
    assert given.seconds(decoding(1, 11, prompt=100), 110) == pytest.approx(0.33)
    assert {each.source for each in given.constants()} == {Source.GIVEN}


def test_ranks_are_drawn_anew_where_the_time_of_a_token_has_changed() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05))
    policy.learn(Costs(prefill_per_token=1e-4))
    epoch = policy.epoch
    policy.learn(Costs(prefill_per_token=1e-4, swap_per_token=1.0))
    assert policy.epoch == epoch
    policy.learn(Costs(prefill_per_token=2e-4))
    assert policy.epoch > epoch


def test_the_service_time_is_the_mean_pass_time_over_the_tokens_processed() -> None:
    service = ServiceTime()
    assert service.passed(0.2, 100, 1)
    assert service.seconds_per_token == pytest.approx(2e-3)
    for _ in range(500):
        service.passed(0.1, 100, 1)
    assert service.seconds_per_token == pytest.approx(1e-3, rel=0.25)


def test_ranks_stand_until_the_service_time_has_drifted_by_a_quarter() -> None:
    policy = UniBoostBase(BoostParams(gamma=0.05))
    policy.passed(0.1, 100)
    epoch = policy.epoch
    for _ in range(100):
        policy.passed(0.12, 100)
    assert policy.epoch == epoch
    for _ in range(100):
        policy.passed(0.2, 100)
    assert policy.epoch > epoch


def test_many_equal_steps_at_once_teach_what_they_teach_one_by_one() -> None:
    singly, at_once = ServiceTime(), ServiceTime()
    for service in (singly, at_once):
        service.passed(0.01, 100, 1)
    for _ in range(200):
        singly.passed(0.1, 100, 1)
    at_once.passed(0.1, 100, 200)
    assert singly.seconds_per_token == pytest.approx(1e-3, rel=0.25)
    assert at_once.seconds_per_token == pytest.approx(1e-3, rel=0.25)


@pytest.mark.parametrize("pass_time", [0.0, inf, float("nan"), -1.0])
def test_a_pass_time_that_is_none_teaches_nothing(pass_time: float) -> None:
    service = ServiceTime()
    assert not service.passed(pass_time, 100, 1)
    assert not service.passed(0.1, 0, 1)
