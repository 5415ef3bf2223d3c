"""UniBoost's first two phases: two disjoint queues, then one with preemption across phases."""

from __future__ import annotations

from headway.policies.batching.boost import BoostParams
from headway.policies.batching.distboost import DistBoost
from headway.policies.batching.uniboost_base import UniBoostBase
from tests.fakes.candidates import Queued, decoding, served
from tests.fakes.plans import make_planned, names

PARAMS = BoostParams(gamma=0.05, seconds_per_token=1e-3)


# --- DistBoost --------------------------------------------------------------------------


def test_distboost_orders_prefills_by_boosted_arrival() -> None:
    long, short = Queued(1, 0.0, num_prompt_tokens=4000), Queued(2, 1.0, num_prompt_tokens=10)
    assert served(DistBoost(PARAMS), [long, short]) == [2, 1]
    assert served(DistBoost(PARAMS), [long, Queued(2, 300.0, num_prompt_tokens=10)]) == [1, 2]


def test_distboost_orders_decodes_by_arrival_whatever_they_attained() -> None:
    assert served(DistBoost(PARAMS), [decoding(1, 9000, 0.0), decoding(2, 1, 1.0)]) == [1, 2]


def test_distboost_keeps_its_queues_apart() -> None:
    candidates = [Queued(1, 0.0, num_prompt_tokens=1), decoding(2, 9000, 9.0)]
    assert served(DistBoost(PARAMS), candidates) == [2, 1]


def test_distboost_preempts_nobody() -> None:
    planned = make_planned(DistBoost(PARAMS), blocks=10)
    planned.come(1, 30, 9, arrival_at=0.0)
    planned.step()
    planned.come(2, 16, 9, arrival_at=0.0)
    assert names(planned.step(2)) == [1]
    assert planned.planner.preemptions.num_voluntary == 0


# --- UniBoost-Base ----------------------------------------------------------------------


def test_base_orders_prefill_and_decode_in_one_queue() -> None:
    old, new = decoding(1, 2000, 0.0), Queued(2, 1.0, num_prompt_tokens=10)
    assert served(UniBoostBase(PARAMS), [old, new]) == [2, 1]
    assert served(UniBoostBase(PARAMS), [decoding(1, 5), Queued(2, 1.0)]) == [1, 2]


def test_base_lets_a_prefill_take_the_blocks_of_a_decode() -> None:
    planned = make_planned(UniBoostBase(PARAMS), blocks=9)
    planned.come(1, 30, 6)
    planned.step(3)
    planned.come(2, 8, 9)
    assert names(planned.step()) == [2]
    assert planned.preempted[1] == 1


def test_base_moves_a_request_with_every_token() -> None:
    policy = UniBoostBase(PARAMS)
    ranks = [policy.rank(decoding(1, tokens), now=0.0) for tokens in (10, 11, 12)]
    assert ranks[0].rank < ranks[1].rank < ranks[2].rank
    assert ranks[0].until_tokens == 10  # 9 attained


def test_base_thrashes_where_memory_is_short_and_memguard_exists_for_that() -> None:
    """Two that take turns at attaining least: each token may preempt the other."""
    planned = make_planned(UniBoostBase(PARAMS), blocks=10)
    planned.come(1, 20, 16, arrival_at=0.0)
    planned.come(2, 20, 16, arrival_at=0.0)
    planned.finish()
    assert planned.planner.preemptions.num_voluntary > 10
