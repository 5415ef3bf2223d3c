"""The preset's order: critical readers, then who has no reader; who waits for long joins them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.cost.costs import Costs, Source
from headway.errors import HeadwayError
from headway.policies.batching import Candidate, Ranked, RankedQueue
from headway.policies.batching.headway import Headway, HeadwayParams
from headway.request import Phase
from tests.fakes.candidates import Queued, decoding, served
from tests.fakes.plans import Planned, make_planned

CRITICAL, WAITING, SUPPLIED = 0.0, 1.0, 2.0
LONG, QUANTUM = 512, 32
LEFT = 700


def make(pass_time: float = 0.0, **params: float) -> Headway:
    policy = Headway(HeadwayParams(**params))  # type: ignore[arg-type]
    policy.passed(pass_time, 10)
    return policy


def answering(name: int, in_hand_until: float, tokens: int = 96, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), in_hand_until=in_hand_until)


def reasoning(name: int, tokens: int, arrival: float = 0.0) -> Queued:
    return replace(decoding(name, tokens, arrival, prompt=10), phase=Phase.REASONING)


# --- the order --------------------------------------------------------------------------


def test_openings_and_readers_with_little_in_hand_go_first_by_arrival() -> None:
    opening = replace(answering(1, -inf, arrival=3.0), opens_answer=True)
    prompt = Queued(4, 4.0, opens_answer=True)
    hungry, old = answering(2, 10.5, arrival=2.0), reasoning(3, 0)
    assert served(make(), [opening, prompt, hungry, old], now=10.0) == [2, 1, 4, 3]


@pytest.mark.parametrize(("slack", "rank"), [(0.0, CRITICAL), (0.69, CRITICAL), (2.01, SUPPLIED)])
def test_a_reader_is_critical_until_it_has_two_seconds_in_hand(slack: float, rank: float) -> None:
    assert make().rank(answering(1, 10.0 + slack), now=10.0).rank[0] == rank


def test_a_reader_once_supplied_is_critical_again_with_under_a_second_in_hand() -> None:
    policy = make()
    supplied = answering(1, 13.0)
    ranked = policy.rank(supplied, now=10.0)
    assert ranked.rank == (SUPPLIED, 13.0)
    assert ranked.until_at == pytest.approx(12.3)
    assert policy.rank(supplied, now=12.2).rank[0] == SUPPLIED
    assert policy.rank(supplied, now=12.4).rank[0] == CRITICAL


def test_an_opening_s_rank_ends_with_its_first_token() -> None:
    opening = replace(answering(1, -inf), opens_answer=True)
    ranked = make().rank(opening, now=10.0)
    assert ranked.until_tokens == opening.attained_tokens + 1


def test_reasoning_is_not_critical_and_neither_is_the_prefill_before_it() -> None:
    policy = make()
    assert policy.rank(Queued(1), now=0.0).rank[0] == WAITING
    assert policy.rank(Queued(2, phase=Phase.REASONING), now=0.0).rank[0] == WAITING


def test_whoever_waits_for_a_visible_token_goes_before_readers_with_tokens_in_hand() -> None:
    supplied, drier = answering(1, 20.0), answering(4, 15.0)
    early, late = reasoning(2, 500, arrival=9.0), reasoning(3, 0, arrival=21.0)
    long = reasoning(5, LONG, arrival=1.0)
    everybody = [supplied, late, long, early, drier]
    assert served(make(0.02, unread_wait=inf), everybody, now=10.0) == [5, 2, 3, 4, 1]


def test_the_long_come_later_by_what_so_many_tokens_take_and_then_by_arrival() -> None:
    short = reasoning(1, LONG - 1, arrival=8.0)
    old, longest = reasoning(2, LONG, arrival=1.0), reasoning(3, 9000, arrival=2.0)
    policy = make(0.02, long_weight=1.0)
    assert served(policy, [longest, old, short], now=9.0) == [1, 2, 3]
    group, turn = policy.rank(old, now=9.0).rank
    assert group == WAITING
    assert turn == pytest.approx(1.0 + LONG * 0.02)


def test_a_short_request_s_rank_ends_when_it_becomes_long() -> None:
    short = reasoning(1, LONG - 12)
    ranked = make().rank(short, now=1.0)
    assert ranked.until_tokens == short.attained_tokens + 12
    assert make().rank(reasoning(1, LONG), now=1.0).until_tokens == inf


def test_an_answer_that_is_read_is_never_long_and_one_that_nobody_reads_may_be() -> None:
    policy = make()
    assert not policy.gives_way(answering(1, 20.0, 4000))
    assert policy.gives_way(replace(answering(1, -inf, 4000), is_read=False))
    assert not policy.gives_way(replace(reasoning(1, 4000), opens_answer=True))


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 50), st.integers(0, 1500)), min_size=2, max_size=12),
    scale=st.sampled_from([0.1, 0.25, 4.0]),
)
def test_pass_times_and_arrivals_in_another_unit_leave_the_order_of_who_has_no_reader(
    arrivals: list[tuple[float, int]], scale: float
) -> None:
    orders = []
    for unit in (1.0, scale):
        waiting = [reasoning(n, tokens, at * unit) for n, (at, tokens) in enumerate(arrivals)]
        policy = make(0.03125 * unit, unread_wait=inf)
        rank = {c.name: policy.rank(c, now=50.0 * unit).rank[1] / unit for c in waiting}
        orders.append(sorted(rank, key=lambda name: (round(rank[name], 6), name)))
    assert orders[0] == orders[1]


def test_a_request_that_becomes_long_loses_no_more_than_those_who_came_while_that_many_take() -> (
    None
):
    """There is no cliff: one more token costs 0.7 of what so many tokens take alone, ever."""
    policy = make(0.003)
    before, after = (policy.rank(reasoning(1, n, 5.0), now=6.0).rank for n in (LONG - 1, LONG))
    assert after[0] == WAITING
    assert after[1] - before[1] == pytest.approx(0.7 * LONG * 0.003)
    assert policy.rank(reasoning(1, 20 * LONG, 5.0), now=6.0).rank == after


def test_a_longer_pass_draws_the_ranks_anew() -> None:
    policy = make(0.01)
    epoch = policy.epoch
    policy.passed(0.01, 10)
    assert policy.epoch == epoch
    policy.passed(0.05, 10, 100)
    assert policy.epoch > epoch


# --- T: who has no reader joins the critical ----------------------------------------------


def test_who_has_no_reader_joins_the_critical_so_long_after_its_turn() -> None:
    policy = make(unread_wait=20.0)
    waits = reasoning(1, 3, arrival=1.0)
    ranked = policy.rank(waits, now=20.9)
    assert (ranked.rank, ranked.until_at) == ((WAITING, 1.0), 21.0)
    ranked = policy.rank(waits, now=21.0)
    assert (ranked.rank, ranked.until_at) == ((CRITICAL, 21.0), inf)
    early, late = (replace(Queued(n, at), opens_answer=True) for n, at in ((2, 20.0), (3, 22.0)))
    assert served(policy, [late, waits, early], now=22.0) == [2, 1, 3]


def test_who_has_joined_stays_critical_when_it_becomes_long_and_when_t_grows() -> None:
    policy = make(pass_time=0.028)
    answers(policy, [100] * 20)
    joined = policy.rank(reasoning(1, LONG - 1), now=4.0)
    assert joined.rank[0] == CRITICAL
    assert joined.rank[1] == pytest.approx(3.65)
    assert policy.rank(reasoning(1, LONG), now=4.0).rank == joined.rank
    assert not policy.gives_way(reasoning(1, LONG))
    answers(policy, [1000] * 200, now=4.0)
    assert policy.rank(reasoning(1, LONG), now=4.0).rank == joined.rank
    policy.forget(reasoning(1, LONG).key)
    assert policy.rank(reasoning(1, LONG), now=4.0).rank[0] == WAITING


def test_without_a_limit_who_has_no_reader_never_joins() -> None:
    ranked = make(unread_wait=inf).rank(reasoning(1, 3), now=1e9)
    assert (ranked.rank, ranked.until_at) == ((WAITING, 0.0), inf)


@given(
    tokens=st.integers(0, 2000),
    arrival=st.floats(0, 100),
    wait=st.floats(0, 30),
    later=st.floats(0, 100),
    step=st.sampled_from([0.003, 0.01, 0.027]),
    kind=st.sampled_from(["opens", "dry", "reasons", "unread"]),
    weight=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_nobody_without_a_reader_is_passed_by_who_came_t_and_its_solo_time_later(
    tokens: int, arrival: float, wait: float, later: float, step: float, kind: str, weight: float
) -> None:
    """With a weight of lengths that is so many times the solo time of what is left, too."""
    policy = make(step, unread_wait=wait, length_weight=weight)
    solo = (0.7 * min(tokens, LONG) + weight * (LEFT + QUANTUM)) * step
    comes_at = arrival + wait + solo + 1e-6 + later
    comer = {
        "opens": Queued(2, comes_at, opens_answer=True),
        "dry": answering(2, -inf, arrival=comes_at),
        "reasons": reasoning(2, 1, comes_at),
        "unread": replace(answering(2, -inf, arrival=comes_at), is_read=False),
    }[kind]
    waits = replace(reasoning(1, tokens, arrival), predicted_remaining=LEFT)
    assert served(policy, [comer, waits], now=comes_at) == [1, 2]


def test_by_length_the_shorter_pass_the_longer_unless_they_come_so_much_later() -> None:
    def order(weight: float, later: float) -> list[int]:
        long, short = reasoning(1, 0), reasoning(2, 0, arrival=later)
        waiting = [replace(long, predicted_remaining=600), replace(short, predicted_remaining=100)]
        return served(make(0.01, length_weight=weight, unread_wait=inf), waiting, now=40.0)

    assert order(0.0, 1.0) == [1, 2]
    assert order(2.0, 9.9) == [2, 1]
    assert order(2.0, 10.1) == [1, 2], "2 times 500 passes of 0.01 s later"


def test_lengths_are_read_only_where_they_count_and_a_rank_by_length_ends_with_its_quantum() -> (
    None
):
    assert not make().reads_lengths
    policy = make(0.01, length_weight=2.0, unread_wait=inf)
    assert policy.reads_lengths
    waits = replace(reasoning(1, QUANTUM + 5), predicted_remaining=95)
    ranked = policy.rank(waits, now=0.0)
    assert ranked.rank == pytest.approx((WAITING, 2.0))
    assert ranked.until_tokens == waits.attained_tokens + QUANTUM - 5
    unknown = replace(waits, predicted_remaining=None)
    assert policy.rank(unknown, now=0.0).rank == (WAITING, 0.0)


def test_who_outlives_the_prediction_needs_nothing_more_wherever_its_quantum_is() -> None:
    policy = make(0.01, length_weight=2.0, unread_wait=inf)
    ranked = [
        policy.rank(replace(reasoning(1, QUANTUM + num), predicted_remaining=left), now=0.0)
        for num, left in ((0, 2.5), (2, 0.5), (3, 0.0), (7, 0.0))
    ]
    in_time, outlived = ranked[:2], ranked[2:]
    for each in in_time:
        assert each.rank == pytest.approx((WAITING, 0.05))
    assert [each.rank for each in outlived] == [(WAITING, 0.0)] * 2
    ends_at = reasoning(1, QUANTUM + 3).attained_tokens
    assert [each.until_tokens for each in in_time] == [ends_at] * 2


def test_a_rank_is_timed_once_a_request_however_long_it_waits() -> None:
    """The queue looks at it again when it joins the critical, and at no other instant."""
    policy = Counting(HeadwayParams(unread_wait=5.0))
    queue: RankedQueue[Queued] = RankedQueue(policy)
    for name in range(20):
        queue.touch(reasoning(name, 3, arrival=name / 10), now=2.0)
    for tenth in range(20, 300):
        queue.settle((), now=tenth / 10)
    assert policy.num_ranks == 2 * 20
    assert queue.due_at == inf


class Counting(Headway):
    """Counts its ranks."""

    num_ranks = 0

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        self.num_ranks += 1
        return super().rank(candidate, now=now)


def answers(policy: Headway, lengths: list[int], *, is_read: bool = True, now: float = 0.0) -> None:
    """So many answers end."""
    for length in lengths:
        ended = replace(decoding(length, length), is_read=is_read)
        policy.completed(ended, now=now)


def test_t_is_how_far_readers_lag_in_the_mean_over_the_tokens_of_their_answers() -> None:
    policy = make(reader_pace=0.1)
    epoch = policy.epoch
    answers(policy, [100] * 40)
    known = {each.name: each for each in policy.constants()}
    assert known["ℓ"].value == pytest.approx(0.1 * 100 / 2 - (0.7 + 2.0) / 2)
    assert known["T"] == ("T", known["ℓ"].value, Source.MEASURED)
    assert policy.epoch == epoch + 1
    assert policy.rank(reasoning(1, 0), now=0.0).until_at == pytest.approx(known["ℓ"].value)


def test_longer_answers_count_by_their_squares_and_old_ones_are_forgotten() -> None:
    policy = make(reader_pace=0.1)
    answers(policy, [50, 150] * 1000)
    lag = next(each.value for each in policy.constants() if each.name == "ℓ")
    assert lag == pytest.approx(0.1 * (50**2 + 150**2) / (2 * 200) - 1.35, rel=0.25)
    answers(policy, [400] * 1000)
    lag = next(each.value for each in policy.constants() if each.name == "ℓ")
    assert lag == pytest.approx(0.1 * 400 / 2 - 1.35, rel=0.25)


def test_requests_without_readers_say_nothing_of_the_lag_but_count_as_work_and_as_waits() -> None:
    policy = make()
    answers(policy, [100] * 20)
    answers(policy, [300] * 20, is_read=False, now=30.0)
    known = {each.name: each.value for each in policy.constants()}
    assert known["ℓ"] == pytest.approx(3.65)
    assert known["ρ"] == pytest.approx(0.25, rel=0.1)
    assert known["W"] == pytest.approx(0.75 * 30.0, rel=0.1)


def test_prompts_of_readers_are_work_that_does_not_lag() -> None:
    policy = make(reader_pace=0.1)
    policy.learn(Costs(prefill_per_token=0.001, decode_per_token=0.01))
    for _ in range(40):
        policy.completed(replace(decoding(1, 100, prompt=1000), num_cached_tokens=0), now=0.0)
    known = {each.name: each.value for each in policy.constants()}
    assert known["ℓ"] == pytest.approx(3.65 / 2), "the prompt costs what the answer does"
    assert known["ρ"] == pytest.approx(1.0)


def test_answers_that_end_with_their_reasoning_say_nothing() -> None:
    policy = make()
    ended = replace(decoding(1, 40), phase=Phase.ANSWERING, num_phase_tokens=0)
    for _ in range(20):
        policy.completed(ended, now=1.0)
    assert policy.constants()[:-1] == [("T", 10.0, Source.PROMISE)]


def test_before_answers_have_ended_t_is_what_the_class_promises() -> None:
    policy = make(promise=10.0)
    answers(policy, [100] * 9)
    assert policy.constants()[:-1] == [("T", 10.0, Source.PROMISE)]
    assert policy.rank(Queued(1, 1.0), now=1.0).until_at == 11.0
    promised = Queued(2, 1.0, allowance=2.0, answer_due_at=6.0)
    assert policy.rank(promised, now=1.0).until_at == 6.0
    answers(policy, [100])
    assert {each.source for each in policy.constants()[:-1]} == {Source.MEASURED}


def test_it_says_how_fast_readers_read() -> None:
    assert make().constants()[-1] == ("τ", 0.1, Source.DEFAULT)
    assert make(reader_pace=0.05).constants()[-1] == ("τ", 0.05, Source.GIVEN)


def test_a_given_t_stands_whatever_is_measured() -> None:
    policy = make(unread_wait=7.0)
    epoch = policy.epoch
    answers(policy, [100] * 20)
    assert policy.constants()[0] == ("T", 7.0, Source.GIVEN)
    assert policy.epoch == epoch


# --- blocks -----------------------------------------------------------------------------


def test_only_the_long_yield_blocks_and_never_to_another_long_one() -> None:
    policy = make(unread_wait=inf)
    long, short = reasoning(1, LONG, arrival=10.0), reasoning(2, 0, arrival=20.0)
    old, opening = reasoning(3, LONG, arrival=4.0), Queued(5, 30.0, opens_answer=True)
    assert policy.preempts
    for better in (short, opening):
        assert policy.may_preempt(long, better, now=40.0)
    assert not policy.may_preempt(long, old, now=40.0)
    assert not policy.may_preempt(short, opening, now=40.0)
    assert not policy.may_preempt(answering(6, 90.0, 4000), opening, now=40.0)


def test_the_long_that_have_joined_the_critical_keep_their_blocks() -> None:
    policy = make(0.01, unread_wait=20.0)
    long, opening = reasoning(1, LONG, arrival=0.0), Queued(2, 30.0, opens_answer=True)
    joins_at = policy.rank(long, now=0.0).until_at
    assert policy.gives_way(long)
    assert policy.may_preempt(long, opening, now=joins_at - 0.1)
    policy.rank(long, now=joins_at)
    assert not policy.gives_way(long)
    assert not policy.may_preempt(long, opening, now=joins_at)


def few_blocks(**params: float) -> Planned:
    """Ten blocks of four tokens, and requests from elsewhere; who has eight tokens is long."""
    return make_planned(make(long_tokens=8, **params), role=Role.DECODE)


def test_blocks_are_kept_free_ahead_of_need_by_the_long_who_came_last() -> None:
    planned = few_blocks(reserve=0.3)
    for name in (1, 2):
        planned.come(name, 4, 20, reasoning=18)
    planned.step(10)
    planned.come(3, 4, 8)
    planned.step()
    unit = planned.state.units[0]
    assert planned.preempted == {1: 0, 2: 1, 3: 0}
    assert [s.key.stream_id for s in unit.sequences.values() if s.running] == [1, 3]
    planned.finish()


def test_the_last_one_that_runs_keeps_its_blocks() -> None:
    planned = few_blocks(reserve=0.5)
    planned.come(1, 4, 30, reasoning=28)
    planned.finish()
    assert planned.ended[0].num_preemptions == 0


def test_without_a_reserve_blocks_are_taken_when_they_are_short() -> None:
    planned = few_blocks(reserve=0.0)
    for name in (1, 2):
        planned.come(name, 4, 20, reasoning=18)
    planned.step(12)
    assert not any(planned.preempted.values())
    planned.finish()
    assert [s.key.stream_id for s in planned.ended] == [1, 2]


def test_growth_takes_blocks_of_the_long_before_those_of_a_reader_with_tokens_in_hand() -> None:
    """The reader ranks behind the long one, which yields all the same."""
    planned = make_planned(make(long_tokens=8, reserve=0.0), blocks=16)
    reader = planned.come(1, 4, 50)
    long = planned.come(2, 4, 50, reasoning=48)
    planned.step(29)
    assert planned.policy.rank(reader, now=planned.now).rank[0] == SUPPLIED
    assert not any(planned.preempted.values())
    planned.step(5)
    assert [s.running for s in (reader, long)] == [True, False]
    planned.finish()
    assert [s.num_preemptions for s in (reader, long)] == [0, 1]
    planned.finish()


def test_growth_takes_blocks_of_who_has_no_reader_also_once_it_has_joined_the_critical() -> None:
    """The reader ranks behind it, and would have to wait for its blocks until others end."""
    planned = make_planned(make(reserve=0.0, unread_wait=0.0), blocks=16)
    reader = planned.come(1, 4, 50)
    unread = planned.come(2, 4, 50, reasoning=48)
    planned.step(34)
    assert planned.policy.rank(reader, now=planned.now).rank[0] == SUPPLIED
    assert planned.policy.rank(unread, now=planned.now).rank[0] == CRITICAL
    assert [s.running for s in (reader, unread)] == [True, False]
    planned.finish()
    assert [s.num_preemptions for s in (reader, unread)] == [0, 1]


def test_a_reader_whose_tokens_run_out_takes_blocks_back_from_who_came_later_unread() -> None:
    policy = make(unread_wait=0.0)
    dry, fed = answering(1, 10.0, arrival=5.0), answering(2, 19.0, arrival=5.0)
    early, late = (reasoning(n, LONG, arrival=at) for n, at in ((3, 4.0), (4, 6.0)))
    assert policy.takes_back(late, dry, now=10.0)
    assert not policy.takes_back(early, dry, now=10.0)
    assert not policy.takes_back(late, fed, now=10.0)
    assert not policy.takes_back(answering(5, 60.0, arrival=6.0), dry, now=10.0)
    assert not policy.takes_back(replace(late, opens_answer=True), dry, now=10.0)
    assert not policy.takes_back(late, early, now=10.0)


def test_who_is_read_again_does_not_wait_until_who_came_later_unread_has_ended() -> None:
    policy = make(reserve=0.0, unread_wait=0.0)
    planned = make_planned(policy, blocks=200, host_tokens=1000, pace=0.0165)
    readers = [planned.come(name, 4, 500) for name in (1, 2)]
    planned.step()
    while all(s.running for s in readers):
        planned.step()
    kept, lost = sorted(readers, key=lambda s: s.num_preemptions)
    unread = planned.come(3, 410, 380, is_read=False)
    planned.state.cancel(kept.key)
    planned.step(50)
    assert (lost.running, unread.running) == (False, True)  # it has tokens in hand
    while not lost.running:
        planned.step()
        assert unread in planned.state.units[0].sequences.values()
    assert lost.in_hand_until > planned.now  # it was never late
    planned.finish()
    assert unread.num_preemptions == 1


LOADS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(2, 24), st.booleans(), st.integers(0, 6)),
    min_size=4,
    max_size=16,
)


@settings(max_examples=150, deadline=None)
@given(load=LOADS, watermark=st.sampled_from([0.0, 0.1]), host_tokens=st.sampled_from([0, 60]))
def test_every_request_ends_and_whoever_is_read_from_the_start_never_yields(
    load: list[tuple[int, int, bool, int]], watermark: float, host_tokens: int
) -> None:

    planned = make_planned(
        make(long_tokens=4, reserve=0.1, unread_wait=inf),
        blocks=14,
        watermark=watermark,
        host_tokens=host_tokens,
    )
    for name, (prompt, output, reasons, num_passes) in enumerate(load):
        planned.step(num_passes)
        planned.come(name, prompt, output, reasoning=output - 1 if reasons else 0)
    planned.finish()
    assert sorted(s.key.stream_id for s in planned.ended) == list(range(len(load)))
    assert planned.state.units[0].pool.num_free == 14
    assert all(s.num_voluntary == 0 for s in planned.ended if not load[s.key.stream_id][2])


@settings(max_examples=100, deadline=None)
@given(load=LOADS, unread_wait=st.sampled_from([0.0, 0.5, inf]), fits=st.booleans())
def test_readers_that_fit_together_lose_their_blocks_to_nobody_and_all_end(
    load: list[tuple[int, int, bool, int]], unread_wait: float, fits: bool
) -> None:
    read = [-(-(prompt + output) // 4) for prompt, output, unread, _ in load if not unread]
    planned = make_planned(
        make(long_tokens=4, reserve=0.0, unread_wait=unread_wait),
        blocks=max(14, sum(read)) if fits else 14,
        host_tokens=60,
    )
    for name, (prompt, output, unread, num_passes) in enumerate(load):
        planned.step(num_passes)
        planned.come(name, prompt, output, is_read=not unread)
    planned.finish()
    assert len(planned.ended) == len(load)
    if fits:
        readers = [s for s in planned.ended if not load[s.key.stream_id][2]]
        assert not any(s.num_preemptions for s in readers)


def test_few_requests_are_preempted_on_a_busy_pool() -> None:
    """Sixty requests, a third of which reason for long, want twice the blocks that there are."""
    planned = make_planned(
        make(long_tokens=32), blocks=100, watermark=0.1, host_tokens=2000, pace=0.03
    )
    for name in range(60):
        reasons = name % 3 == 0
        planned.come(name, 8, 90 if reasons else 20, reasoning=70 if reasons else 0)
        planned.step(6)
    planned.finish()
    assert sum(s.num_preemptions for s in planned.ended) < 0.3 * 60


@pytest.mark.parametrize("opens", [True, False])
def test_a_long_prompt_waits_for_short_ones_by_so_many_times_what_it_takes(opens: bool) -> None:
    policy = make(prompt_weight=3.0)
    policy.learn(Costs(prefill_per_token=0.001))
    long = Queued(1, 0.0, num_prompt_tokens=1000, opens_answer=opens)
    in_time, late = (
        replace(long, name=n, arrival_at=at, num_prompt_tokens=100)
        for n, at in ((2, 2.6), (3, 2.8))
    )
    assert served(policy, [long, late, in_time], now=3.0) == [2, 1, 3]
    cached = replace(long, name=4, num_cached_tokens=900)
    assert served(policy, [long, cached], now=3.0) == [4, 1]


@pytest.mark.parametrize(("promised", "last"), [(2.0, 0.7), (0.9, 2.7)])
def test_a_long_prompt_lets_no_more_pass_than_leave_it_time_for_its_promise(
    promised: float, last: float
) -> None:
    """A prompt of 1 s has 1 s to spare of 2 s; with 0.9 s it would be late in any case."""
    policy = make(prompt_weight=3.0)
    policy.learn(Costs(prefill_per_token=0.001))
    long = Queued(1, 0.0, num_prompt_tokens=1000, opens_answer=True, allowance=promised)
    passes, waits = (
        replace(long, name=n, arrival_at=last + offset, num_prompt_tokens=100)
        for n, offset in ((2, -0.05), (3, 0.05))
    )
    assert served(policy, [long, waits, passes], now=3.0) == [2, 1, 3]


def test_without_a_prompt_token_s_time_or_with_a_weight_of_0_prompts_go_by_arrival() -> None:
    long, short = Queued(1, 0.0, num_prompt_tokens=1000), Queued(2, 0.1, num_prompt_tokens=10)
    plain = make(prompt_weight=0.0)
    plain.learn(Costs(prefill_per_token=0.001))
    for policy in (make(), plain):
        assert served(policy, [short, long], now=1.0) == [1, 2]


def test_a_prompt_that_is_done_has_its_place_by_arrival_again() -> None:
    policy = make(prompt_weight=3.0)
    policy.learn(Costs(prefill_per_token=0.001))
    done = replace(reasoning(1, 1), num_prompt_tokens=10_000)
    assert policy.rank(done, now=1.0).rank == (WAITING, 0.0)


def test_other_costs_draw_the_ranks_anew() -> None:
    policy = make()
    assert [each.name for each in policy.constants()] == ["T", "τ"]
    before = policy.epoch
    policy.learn(Costs(prefill_per_token=0.001))
    assert policy.epoch > before
    constant = policy.constants()[0]
    assert (constant.name, constant.value) == ("prompt token", 0.001)
    after = policy.epoch
    policy.learn(Costs(prefill_per_token=0.001, swap_per_token=1.0))
    assert policy.epoch == after


@pytest.mark.parametrize(
    "params",
    [
        {"long_tokens": -1},
        {"prompt_weight": -1.0},
        {"long_weight": -1.0},
        {"unread_wait": -1.0},
        {"promise": -1.0},
        {"reserve": 0.6},
        {"critical_slack": 3.0},
        {"quantum": 0},
        {"reader_pace": 0.0},
    ],
)
def test_parameters_have_bounds(params: dict[str, float]) -> None:
    with pytest.raises(HeadwayError):
        make(**params)


# --- classes ------------------------------------------------------------------------------


def test_who_yields_comes_last_until_it_is_due_and_gives_its_blocks_to_all() -> None:
    policy = make()
    batch = replace(decoding(1, 5, 0.0), yields=True, allowance=100.0)
    later = replace(batch, name=2, arrival_at=1.0)
    supplied, waiting = answering(3, 50.0, arrival=5.0), reasoning(4, 10, arrival=9.0)
    assert served(policy, [batch, later, supplied, waiting], now=10.0) == [4, 3, 1, 2]
    assert policy.rank(batch, now=10.0).until_at == 100.0
    assert policy.gives_way(batch)
    assert policy.may_preempt(batch, waiting, now=10.0)
    assert not policy.may_preempt(waiting, batch, now=10.0)
    assert not policy.may_preempt(batch, later, now=10.0)


def test_who_yields_does_not_starve() -> None:
    policy = make()
    batch = Queued(1, 0.0, yields=True, allowance=100.0)
    newcomer = Queued(2, 200.0)
    assert served(policy, [batch, newcomer], now=200.0) == [1, 2]
    assert not policy.may_preempt(batch, newcomer, now=200.0)


def test_a_promised_first_token_stands_for_the_arrival() -> None:
    patient, urgent = Queued(1, 0.0, allowance=5.0), Queued(2, 3.0, allowance=1.0)
    assert served(make(), [patient, urgent], now=3.0) == [2, 1]
