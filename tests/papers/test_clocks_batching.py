"""``clocks``: critical readers, then age against service, then supplied readers."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.clocks import Clocks, ClocksParams
from headway.request import Phase
from tests.fakes.candidates import Queued, decoding, served

CRITICAL, BY_AGE, SUPPLIED = 0.0, 1.0, 2.0
PASS = 0.02


def make(**params: float) -> Clocks:
    """Return a policy that has measured passes of 20 ms."""
    policy = Clocks(ClocksParams(**params))  # type: ignore[arg-type]
    policy.passed(PASS, 10)
    return policy


def answering(name: int, in_hand_until: float, tokens: int = 96, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), in_hand_until=in_hand_until)


def reasoning(name: int, tokens: int, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), phase=Phase.REASONING)


def test_an_opening_and_a_reader_with_little_in_hand_go_first_by_arrival() -> None:
    policy = make()
    opening = replace(answering(1, -inf, arrival=3.0), opens_answer=True)
    hungry, old = answering(2, 10.5, arrival=2.0), reasoning(3, 0, arrival=0.0)
    assert served(policy, [opening, hungry, old], now=10.0) == [2, 1, 3]
    assert policy.rank(hungry, now=10.0).rank == (CRITICAL, 2.0)


@pytest.mark.parametrize(("slack", "before", "after"), [(1.9, CRITICAL, SUPPLIED)])
def test_a_critical_reader_stays_so_until_it_is_well_supplied(
    slack: float, before: float, after: float
) -> None:
    policy = make()
    assert policy.rank(answering(1, 10.1), now=10.0).rank[0] == before
    late = answering(1, 11.0 + slack, tokens=96 + 10)
    assert policy.rank(late, now=11.0).rank[0] == before  # 20 tokens are lacking
    supplied = answering(1, 13.5, tokens=96 + 20)
    assert policy.rank(supplied, now=11.0).rank[0] == after
    assert policy.rank(answering(1, 13.5, tokens=117), now=12.9).rank[0] == CRITICAL


def test_before_the_answer_age_weighs_against_the_seconds_that_service_takes_alone() -> None:
    served_long, young = reasoning(1, 320), reasoning(2, 0, arrival=6.0)
    policy = make()
    assert policy.rank(served_long, now=10.0).rank == pytest.approx((BY_AGE, 320 * PASS))
    assert served(policy, [served_long, young], now=10.0) == [2, 1]
    assert served(make(order_slowdown=0.5), [served_long, young], now=10.0) == [1, 2]


def test_a_supplied_reader_waits_behind_all_but_not_for_its_blocks() -> None:
    policy = make()
    supplied, thinks = answering(1, 20.0), reasoning(2, 6400, arrival=9.0)
    assert served(policy, [supplied, thinks], now=10.0) == [2, 1]
    waiting = replace(supplied, running=False)
    assert policy.rank(waiting, now=10.0).rank == pytest.approx((BY_AGE, 96 * PASS))


def test_a_client_that_does_not_read_has_no_reader_s_clock() -> None:
    policy = make()
    unread = replace(answering(1, -inf), is_read=False)
    assert policy.rank(unread, now=10.0).rank == pytest.approx((BY_AGE, 96 * PASS))
    assert policy.gain(unread, reasoning(2, 96)) == pytest.approx(0.0)


def test_a_rank_says_when_its_reader_becomes_critical() -> None:
    ranked = make().rank(answering(1, 20.0, tokens=100), now=10.0)
    assert ranked.until_at == pytest.approx(19.3)
    assert ranked.until_tokens == answering(1, 20.0, tokens=100).attained_tokens + 28


def test_blocks_are_taken_for_age_and_never_for_slack() -> None:
    policy = make(swap_per_token=1e-3)
    for slack in (15.0, 1000.0):
        holder = answering(1, slack, tokens=640)
        assert policy.gain(holder, reasoning(2, 0)) == pytest.approx(2 * 640 * PASS)
    holder = answering(3, 15.0, tokens=640, arrival=0.0)
    policy.rank(holder, now=10.0)
    assert policy.may_preempt(holder, reasoning(4, 0, arrival=24.0), now=10.0)
    assert not policy.may_preempt(holder, reasoning(4, 0, arrival=25.0), now=10.0)  # swap: 0.65 s


def test_a_critical_request_takes_blocks_once_a_level_and_not_from_another() -> None:
    policy = make()
    holder, opening = answering(1, 1000.0), replace(Queued(2, 9.0), opens_answer=True)
    policy.rank(holder, now=10.0)
    assert policy.may_preempt(holder, opening, now=10.0)
    policy.preempted(holder, voluntary=True)
    assert not policy.may_preempt(holder, opening, now=10.0)
    assert policy.may_preempt(replace(holder, num_output_tokens=128), opening, now=10.0)
    assert policy.gain(opening, replace(opening, name=3)) == 0.0


def test_ranks_change_when_passes_have_become_longer_by_a_quarter() -> None:
    policy = make()
    epoch = policy.epoch
    policy.passed(PASS, 10)
    assert policy.epoch == epoch
    for _ in range(200):
        policy.passed(2 * PASS, 10)
    assert policy.epoch > epoch
    assert policy.rank(reasoning(1, 320), now=10.0).rank[1] == pytest.approx(640 * PASS, rel=0.25)


def test_a_forgotten_request_begins_anew() -> None:
    policy = make()
    policy.rank(answering(1, 20.0), now=10.0)
    policy.forget(answering(1, 20.0).key)
    assert policy.rank(answering(1, 11.5), now=10.0).rank[0] == CRITICAL


@pytest.mark.parametrize(
    "params", [{"critical_slack": 3.0}, {"quantum": 0}, {"reader_pace": 0.0}, {"k": 0}]
)
def test_parameters_have_bounds(params: dict[str, float]) -> None:
    with pytest.raises(HeadwayError):
        make(**params)
