"""The batching policies that UniBoost is measured against, each in a sentence or two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.errors import HeadwayError
from headway.policies.batching import Batching
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.las import Las
from headway.policies.batching.ltr import Ltr, LtrParams
from headway.policies.batching.rr import RoundRobinBatching
from headway.policies.batching.sarathi import Sarathi
from headway.policies.batching.shortest_prefix import ShortestPrefix
from headway.policies.batching.sjf import Sjf
from headway.policies.batching.skip_join_mlfq import SkipJoinMlfq, SkipJoinMlfqParams
from headway.policies.batching.srpt import Srpt
from headway.policies.batching.trail import Trail, TrailParams
from tests.fakes.candidates import Queued, decoding, served
from tests.fakes.plans import make_planned, names


def sized(name: int, prompt: int, output: int, arrival_at: float = 0.0) -> Queued:
    """Waits, with a length that is known."""
    return Queued(name, arrival_at, num_prompt_tokens=prompt, true_remaining=output)


def predicted(candidate: Queued, remaining: float) -> Queued:
    return replace(candidate, predicted_remaining=remaining)


# --- in order of arrival ----------------------------------------------------------------


def test_fcfs_serves_prefill_and_decode_alike_by_arrival() -> None:
    assert served(Fcfs(), [decoding(1, 5, 2.0), Queued(2, 1.0), Queued(3, 3.0)]) == [2, 1, 3]


def test_sarathi_serves_decodes_first_each_by_arrival() -> None:
    candidates = [Queued(1, 0.0), Queued(2, 1.0), decoding(3, 5, 3.0), decoding(4, 5, 2.0)]
    assert served(Sarathi(), candidates) == [4, 3, 1, 2]


def test_sarathi_gives_prefills_what_decodes_leave_of_the_chunk() -> None:
    planned = make_planned(Sarathi(), blocks=40, chunk=8)
    planned.come(1, 4, 9)
    planned.step()
    planned.come(2, 30, 9)
    assert [(i.key.stream_id, len(i.token_ids)) for i in planned.step()] == [(1, 1), (2, 7)]


@pytest.mark.parametrize("policy", [Fcfs(), Sarathi(), ShortestPrefix(), Sjf()])
def test_who_runs_is_preempted_for_nobody(policy: Batching) -> None:
    assert not policy.preempts


# --- by size ----------------------------------------------------------------------------


def test_shortest_prefix_admits_the_fewest_prompt_tokens_to_compute() -> None:
    cached = Queued(2, 1.0, num_prompt_tokens=900, num_cached_tokens=890)
    candidates = [Queued(1, 0.0, num_prompt_tokens=50), cached, decoding(3, 9000, 9.0, prompt=99)]
    assert served(ShortestPrefix(), candidates) == [3, 2, 1]


def test_sjf_admits_the_fewest_tokens_in_all() -> None:
    candidates = [sized(1, 10, 500), sized(2, 100, 50), decoding(3, 9000, 9.0)]
    assert served(Sjf(), candidates) == [3, 2, 1]


def test_sjf_goes_by_the_prediction_where_nobody_knows_and_by_arrival_else() -> None:
    guessed = predicted(Queued(2, 5.0), 10.0)
    assert served(Sjf(), [Queued(1, 1.0), guessed, Queued(3, 0.0)]) == [2, 3, 1]


def test_sjf_moves_a_request_that_outlives_its_prediction() -> None:
    ranked = Sjf().rank(predicted(decoding(1, 50, prompt=10), 7.0), now=0.0)
    assert ranked.until_tokens == 59 + 7


def test_srpt_serves_the_fewest_tokens_still_to_process() -> None:
    nearly_done = replace(decoding(1, 900, prompt=100), true_remaining=5)
    assert served(Srpt(), [nearly_done, sized(2, 10, 20), sized(3, 2, 2)]) == [3, 1, 2]


def test_srpt_preempts_whoever_has_more_left() -> None:
    planned = make_planned(Srpt(), blocks=10)
    planned.come(1, 30, 14)
    planned.step(3)  # 11 tokens left
    planned.come(2, 20, 1)
    assert names(planned.step()) == [1]
    planned.come(3, 6, 2)
    assert names(planned.step()) == [3]
    assert planned.preempted[1] == 1


# --- by predicted size ------------------------------------------------------------------


def test_trail_serves_the_fewest_predicted_tokens_to_come() -> None:
    candidates = [predicted(Queued(1), 500.0), predicted(Queued(2), 20.0), Queued(3)]
    assert served(Trail(), candidates) == [2, 1, 3]


def test_trail_preempts_nobody_in_the_late_part_of_its_predicted_output() -> None:
    policy = Trail(TrailParams(c=0.8))
    early, late = predicted(decoding(1, 79), 21.0), predicted(decoding(2, 80), 20.0)
    assert policy.may_preempt(early, predicted(Queued(3), 1.0), now=0.0)
    assert not policy.may_preempt(late, predicted(Queued(3), 1.0), now=0.0)
    assert served(policy, [predicted(Queued(3, num_prompt_tokens=1), 1.0), late]) == [2, 3]


@pytest.mark.parametrize(("c", "is_spared"), [(0.0, True), (1.0, False)])
def test_trail_s_share_spans_all_from_no_preemption_to_srpt(c: float, is_spared: bool) -> None:
    victim = predicted(decoding(1, 1), 500.0)
    assert Trail(TrailParams(c)).may_preempt(victim, Queued(2), now=0.0) is not is_spared


def test_ltr_ranks_by_the_length_predicted_on_arrival_and_by_no_later_one() -> None:
    policy = Ltr()
    first, second = predicted(Queued(1), 100.0), predicted(Queued(2), 200.0)
    assert served(policy, [first, second]) == [1, 2]
    assert served(policy, [first, predicted(second, 5.0)]) == [1, 2]


def test_ltr_promotes_who_has_waited_too_long_for_a_quantum() -> None:
    policy = Ltr(LtrParams(patience=30.0, quantum=100))
    long, short = predicted(Queued(1), 900.0), predicted(Queued(2), 5.0)
    assert policy.rank(long, now=0.0).until_at == 30.0
    assert served(policy, [long], now=29.0) == [1]
    fresh = replace(short, name=3)
    assert served(policy, [long, fresh], now=30.0) == [1, 3]
    ran = replace(long, running=True, attained_tokens=99)
    assert served(policy, [ran, fresh], now=31.0) == [1, 3]
    assert served(policy, [replace(ran, attained_tokens=100), fresh], now=32.0) == [3, 1]


# --- by attained service ----------------------------------------------------------------


def test_las_serves_the_fewest_tokens_attained_and_moves_with_each() -> None:
    policy = Las()
    candidates = [decoding(1, 50), decoding(2, 20, 9.0), Queued(3, 99.0, num_prompt_tokens=9000)]
    assert served(policy, candidates) == [3, 2, 1]
    assert policy.rank(decoding(1, 50), now=0.0).until_tokens == 50


def test_skip_join_mlfq_admits_to_the_first_level_whose_quantum_holds_the_prompt() -> None:
    policy = SkipJoinMlfq(SkipJoinMlfqParams(quantum=64))
    levels = [
        policy.rank(Queued(n, num_prompt_tokens=prompt), now=0.0).rank[0]
        for n, prompt in enumerate((1, 64, 65, 128, 129, 2**30))
    ]
    assert levels == [0, 0, 1, 1, 2, 11]


def test_skip_join_mlfq_lowers_who_has_used_the_quantum_of_the_level() -> None:
    policy = SkipJoinMlfq(SkipJoinMlfqParams(quantum=64))
    ranked = policy.rank(decoding(1, 11, prompt=10), now=0.0)
    assert (ranked.rank[0], ranked.until_tokens) == (0, 64)
    ranked = policy.rank(decoding(1, 55, prompt=10), now=0.0)
    assert (ranked.rank[0], ranked.until_tokens) == (1, 64 + 128)


def test_skip_join_mlfq_returns_who_has_waited_too_long_to_the_first_level() -> None:
    policy = SkipJoinMlfq(SkipJoinMlfqParams(quantum=64, patience=30.0))
    large = Queued(1, num_prompt_tokens=1000)
    ranked = policy.rank(large, now=5.0)
    assert (ranked.rank[0], ranked.until_at) == (4, 35.0)
    assert policy.rank(large, now=34.9).rank[0] == 4
    assert policy.rank(large, now=35.0).rank[0] == 0


def test_skip_join_mlfq_preempts_across_levels_only() -> None:
    policy = SkipJoinMlfq(SkipJoinMlfqParams(quantum=64))
    low, high = decoding(1, 100), Queued(2, 9.0, num_prompt_tokens=10)
    peer = decoding(3, 10)
    for candidate in (low, high, peer):
        policy.rank(candidate, now=0.0)
    assert policy.may_preempt(low, high, now=0.0)
    assert not policy.may_preempt(peer, high, now=0.0)


def test_rr_puts_who_has_used_a_quantum_behind_those_with_fewer() -> None:
    policy = RoundRobinBatching()
    candidates = [decoding(1, 500, 0.0), decoding(2, 499, 9.0), decoding(3, 1000, 0.0)]
    assert served(policy, candidates) == [2, 1, 3]
    assert not policy.may_preempt(decoding(1, 500), decoding(3, 999), now=0.0)
    assert policy.may_preempt(decoding(1, 1000), decoding(3, 999), now=0.0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (LtrParams, {"patience": 0.0}),
        (LtrParams, {"quantum": 0}),
        (SkipJoinMlfqParams, {"num_levels": 41}),
        (SkipJoinMlfqParams, {"quantum": 0}),
        (TrailParams, {"c": 1.1}),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    make: type[LtrParams], field: dict[str, float]
) -> None:
    with pytest.raises(HeadwayError, match=next(iter(field))):
        make(**field)  # type: ignore[arg-type]
