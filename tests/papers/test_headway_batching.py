"""The one order in seconds: Φ′ = a − b_γ(w̃_q) + max(0, slack), critical requests first."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.headway import Headway, HeadwayParams
from headway.policies.batching.uniboost import UniBoost, UniBoostParams
from headway.request import Phase
from tests.fakes.candidates import Queued, decoding, served
from tests.fakes.plans import make_planned

CRITICAL, OTHER = 0.0, 1.0


def make(**params: float) -> Headway:
    return Headway(HeadwayParams(gamma=0.05, seconds_per_token=1e-3, **params))  # type: ignore[arg-type]


def answering(name: int, in_hand_until: float, tokens: int = 100, answered: int = 100) -> Queued:
    """``tokens`` generated, ``answered`` of them since its reasoning ended."""
    candidate = replace(decoding(name, tokens, prompt=100), num_phase_tokens=answered)
    return replace(candidate, in_hand_until=in_hand_until)


def slack_of(policy: Headway, candidate: Queued, now: float) -> float:
    """What is added to UniBoost's Φ."""
    params = UniBoostParams(gamma=0.05, seconds_per_token=1e-3)
    phi = UniBoost(params).rank(candidate, now=now).rank[0]
    return policy.rank(candidate, now=now).rank[1] - phi


# --- Φ′ ---------------------------------------------------------------------------------


def test_an_answer_s_rank_is_uniboost_s_plus_the_seconds_in_hand() -> None:
    assert slack_of(make(), answering(1, 12.0), 10.0) == pytest.approx(2.0)


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.REASONING])
def test_prefill_and_reasoning_have_no_slack(phase: Phase) -> None:
    candidate = replace(answering(1, 12.0), phase=phase)
    assert slack_of(make(), candidate, 10.0) == 0.0


def test_who_has_tokens_in_hand_waits_for_free() -> None:
    early, late = answering(1, 15.0), replace(answering(2, 11.0), arrival_at=2.0)
    assert served(make(), [early, late], now=10.0) == [2, 1]


def test_the_order_is_in_seconds_so_slack_and_age_weigh_the_same() -> None:
    for age, first in ((3.9, 2), (4.1, 1)):
        patient, other = answering(1, 15.0), replace(answering(2, 11.0), arrival_at=age)
        assert served(make(), [patient, other], now=10.0)[0] == first


# --- the critical class -----------------------------------------------------------------


def test_who_opens_an_answer_goes_before_all() -> None:
    policy = make()
    opening = replace(answering(9, -inf, answered=0), opens_answer=True, arrival_at=99.0)
    prompt = Queued(8, 99.0, opens_answer=True)
    old = Queued(1, 0.0, phase=Phase.REASONING)
    assert served(policy, [old, opening, prompt], now=100.0)[2] == 1


@pytest.mark.parametrize(("slack", "rank"), [(0.0, CRITICAL), (0.69, CRITICAL), (0.71, OTHER)])
def test_who_is_about_to_let_its_reader_wait_goes_before_all(slack: float, rank: float) -> None:
    assert make().rank(answering(1, 10.0 + slack), now=10.0).rank[0] == rank


def test_reasoning_is_not_critical_and_neither_is_the_prefill_before_it() -> None:
    policy = make()
    assert policy.rank(Queued(1, opens_answer=False), now=0.0).rank[0] == OTHER
    assert policy.rank(Queued(2, phase=Phase.REASONING), now=0.0).rank[0] == OTHER


def test_an_opening_s_rank_ends_with_its_first_token() -> None:
    opening = replace(answering(1, -inf, answered=0), opens_answer=True)
    ranked = make().rank(opening, now=10.0)
    assert ranked.until_tokens == opening.attained_tokens + 1


# --- slack is quantised -----------------------------------------------------------------


def test_slack_is_lowered_at_any_time_and_raised_only_at_a_level() -> None:
    policy = make()
    assert slack_of(policy, answering(1, 15.0), 10.0) == pytest.approx(5.0)
    assert slack_of(policy, answering(1, 15.0, 101, 101), 12.0) == pytest.approx(3.0)
    assert slack_of(policy, answering(1, 19.0, 127, 127), 12.0) == pytest.approx(3.0)
    assert slack_of(policy, answering(1, 19.0, 128, 128), 12.0) == pytest.approx(7.0)


def test_a_level_of_the_answer_raises_it_too() -> None:
    policy = make()
    assert slack_of(policy, answering(1, 11.0, 1000, 63), 10.0) == pytest.approx(1.0)
    assert slack_of(policy, answering(1, 15.0, 1001, 64), 10.0) == pytest.approx(5.0)


def test_slack_counts_in_steps_of_half_a_second() -> None:
    policy = make()
    assert slack_of(policy, answering(1, 15.0), 10.0) == pytest.approx(5.0)
    assert slack_of(policy, answering(1, 15.0), 10.4) == pytest.approx(5.0)
    assert slack_of(policy, answering(1, 15.0), 10.6) == pytest.approx(4.4)


def test_a_rank_says_when_the_slack_will_have_fallen() -> None:
    policy = make()
    assert policy.rank(answering(1, 15.0), now=10.0).until_at == pytest.approx(10.5)
    assert policy.rank(answering(2, 11.0), now=10.0).until_at == pytest.approx(10.3)  # critical


def test_who_has_become_critical_remains_it_until_the_next_level() -> None:
    policy = make()
    assert policy.rank(answering(1, 10.5), now=10.0).rank[0] == CRITICAL
    assert policy.rank(answering(1, 19.0, 120, 120), now=10.0).rank[0] == CRITICAL
    assert policy.rank(answering(1, 19.0, 128, 128), now=10.0).rank[0] == OTHER


# --- preemptions --------------------------------------------------------------------------


def test_slack_adds_to_the_gain_of_a_preemption() -> None:
    policy = make(swap_per_token=1e-3)
    victim, better = replace(answering(1, 15.0), arrival_at=9.0), Queued(2, 9.0)
    for candidate in (victim, better):
        policy.rank(candidate, now=10.0)
    plain = UniBoost(UniBoostParams(gamma=0.05, seconds_per_token=1e-3, swap_per_token=1e-3))
    assert policy.gain(victim, better) == pytest.approx(plain.gain(victim, better) + 5.0)


def test_a_critical_one_may_preempt_whoever_has_a_credit() -> None:
    policy = make(swap_per_token=1.0)
    victim, opening = answering(1, 15.0), Queued(2, 9.0, opens_answer=True)
    for candidate in (victim, opening):
        policy.rank(candidate, now=10.0)
    assert policy.may_preempt(victim, opening, now=10.0)
    policy.preempted(victim, voluntary=True)
    assert not policy.may_preempt(victim, opening, now=10.0)


def test_slack_does_not_duty_cycle_answers_in_and_out() -> None:
    """Answers that outrun their readers, more than fit: preemptions stay bounded by the levels."""
    planned = make_planned(make(k=4), blocks=24, block_size=4, pace=0.5)
    for name in range(6):
        planned.come(name, 8, 24)
    planned.finish()
    assert all(s.num_voluntary <= 4 for s in planned.ended)  # ⌊log2(24 / 4)⌋ + 2


@pytest.mark.parametrize("field", [{"critical_slack": 61.0}, {"slack_step": 0.0}])
def test_parameters_out_of_range_are_refused_by_name(field: dict[str, float]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(field))):
        make(**field)
