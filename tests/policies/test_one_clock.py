"""``one-clock``: critical readers, then everybody by one clock; no blocks taken but by need."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.one_clock import OneClock, OneClockParams
from headway.request import Phase
from tests.fakes.candidates import Queued, decoding, served

CRITICAL, OTHERS = 0.0, 1.0
PASS = 0.02


def make(**params: float) -> OneClock:
    """Return a policy that has measured passes of 20 ms."""
    policy = OneClock(OneClockParams(**params))  # type: ignore[arg-type]
    policy.passed(PASS, 10)
    return policy


def answering(name: int, in_hand_until: float, tokens: int = 96, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), in_hand_until=in_hand_until)


def reasoning(name: int, tokens: int, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), phase=Phase.REASONING)


def test_openings_and_readers_with_little_in_hand_go_first() -> None:
    opening = replace(answering(1, -inf, arrival=3.0), opens_answer=True)
    hungry, old = answering(2, 10.5, arrival=2.0), reasoning(3, 0)
    assert served(make(), [opening, hungry, old], now=10.0) == [2, 1, 3]


def test_a_supplied_reader_stands_among_the_others_by_the_instant_at_which_it_runs_dry() -> None:
    policy = make()
    supplied = answering(1, 20.0)
    assert policy.rank(supplied, now=10.0).rank == (OTHERS, 20.0)
    young, long = reasoning(2, 0, arrival=9.0), reasoning(3, 640, arrival=9.0)
    assert served(policy, [supplied, young, long], now=10.0) == [2, 1, 3]


def test_whoever_has_had_the_most_service_for_its_age_is_last() -> None:
    policy = make()
    assert not policy.preempts
    long, young = reasoning(1, 640, arrival=0.0), reasoning(2, 64, arrival=11.0)
    assert served(policy, [long, young], now=12.8) == [2, 1]
    assert served(make(order_slowdown=0.5), [long, young], now=12.8) == [1, 2]


def test_a_request_that_has_lost_its_blocks_waits_by_its_arrival() -> None:
    policy = make()
    lost = replace(reasoning(1, 6400, arrival=1.0), running=False, num_preemptions=1)
    assert policy.rank(lost, now=200.0).rank == (OTHERS, 1.0)
    new = replace(reasoning(2, 0, arrival=2.0), running=False)
    assert served(policy, [new, lost], now=200.0) == [1, 2]
    assert served(make(waiting_slowdown=1.0), [new, lost], now=200.0) == [2, 1]


def test_a_client_that_does_not_read_has_no_reader_s_clock() -> None:
    unread = replace(answering(1, -inf), is_read=False)
    assert make().rank(unread, now=10.0).rank == pytest.approx((OTHERS, 2 * 96 * PASS))


def test_a_forgotten_request_begins_anew() -> None:
    policy = make()
    policy.rank(answering(1, 20.0), now=10.0)
    policy.forget(answering(1, 20.0).key)
    assert policy.rank(answering(1, 11.5), now=10.0).rank[0] == CRITICAL


@pytest.mark.parametrize("params", [{"critical_slack": 3.0}, {"quantum": 0}, {"reader_pace": 0.0}])
def test_parameters_have_bounds(params: dict[str, float]) -> None:
    with pytest.raises(HeadwayError):
        make(**params)
