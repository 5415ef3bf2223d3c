"""The orders that an operator would try first, and those that other systems have."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cost.costs import Costs
from headway.errors import HeadwayError
from headway.policies.batching.chats_first import ChatsFirst
from headway.policies.batching.hrrn import Hrrn, HrrnParams
from headway.policies.batching.jitserve import Jitserve
from headway.policies.batching.lpm import Lpm, LpmParams
from headway.policies.batching.qoserve import Qoserve, QoserveParams
from headway.policies.batching.shortest_prefix import ShortestPrefix, ShortestPrefixParams
from headway.policies.batching.slo_deadline import SloDeadline, SloDeadlineParams
from headway.policies.batching.slo_queue import SloQueue
from headway.policies.batching.split import Split, SplitParams
from headway.policies.batching.wfq import Wfq, WfqParams
from headway.request import Phase
from tests.fakes.candidates import Queued, served


def test_decode_goes_before_prefill_and_chats_before_reasoning() -> None:
    found = served(
        ChatsFirst(),
        [
            Queued(1, 0.0),
            Queued(2, 1.0, reasons=True, decoding=True),
            Queued(3, 2.0, decoding=True),
            Queued(4, 0.0, reasons=True),
        ],
    )
    assert found == [3, 2, 1, 4]


def test_a_deadline_is_the_limit_of_the_class_until_the_answer_begins() -> None:
    chat = Queued(1, 0.0, opens_answer=True)
    reasoning = Queued(2, 0.0, reasons=True, num_output_tokens=10, phase=Phase.REASONING)
    earlier = Queued(3, -5.0, reasons=True, num_output_tokens=200, phase=Phase.REASONING)
    # Due at 1 s, at 2 + 0.5 s, and at -5 + 2 + 10 s.
    assert served(SloDeadline(), [earlier, reasoning, chat]) == [1, 2, 3]


def test_an_answering_token_is_due_when_its_reader_has_read_the_others() -> None:
    supplied = Queued(1, 0.0, phase=Phase.ANSWERING, in_hand_until=50.0)
    behind = Queued(2, 9.0, phase=Phase.ANSWERING, in_hand_until=10.0)
    unread = Queued(3, 0.0, phase=Phase.ANSWERING, in_hand_until=-inf, is_read=False)
    assert served(SloDeadline(), [supplied, behind, unread]) == [3, 2, 1]


def test_a_limit_out_of_range_is_refused() -> None:
    with pytest.raises(HeadwayError, match="ttft"):
        SloDeadlineParams(ttft=-1.0)


def test_the_longest_cached_prefix_enters_first_and_a_wait_makes_up_for_a_hit() -> None:
    cold, warm = Queued(1, 0.0), Queued(2, 3.0, num_hit_tokens=64)
    running = Queued(3, 9.0, running=True)
    assert served(Lpm(), [cold, warm, running]) == [3, 2, 1]
    assert served(Lpm(LpmParams(aging_tokens_per_s=20.0)), [cold, warm]) == [2, 1]
    assert served(Lpm(LpmParams(aging_tokens_per_s=22.0)), [cold, warm]) == [1, 2]


def test_the_fewest_uncached_tokens_enter_first_and_age_shortens_a_prompt() -> None:
    long_but_warm = Queued(1, 5.0, num_prompt_tokens=1000, num_hit_tokens=960)
    short = Queued(2, 4.0, num_prompt_tokens=50)
    long = Queued(3, 0.0, num_prompt_tokens=500)
    assert served(ShortestPrefix(), [long, short, long_but_warm]) == [1, 2, 3]
    aged = ShortestPrefix(ShortestPrefixParams(aging_tokens_per_s=115.0))
    assert served(aged, [long, short, long_but_warm]) == [3, 2, 1]


def test_the_highest_response_ratio_enters_next() -> None:
    long = Queued(1, 0.0, num_prompt_tokens=1000, true_remaining=1000)
    short = Queued(2, 9.0, num_prompt_tokens=50, true_remaining=50)
    unknown = Queued(3, 0.0)
    policy = Hrrn()
    assert served(policy, [long, short, unknown], now=9.1) == [1, 2, 3]
    assert served(policy, [long, short, unknown], now=12.0) == [2, 1, 3]


@given(
    arrival_at=st.sampled_from([0.0, 1.79e9]),
    wait=st.floats(0, 1e6),
    size=st.integers(1, 1 << 20),
    steps=st.integers(1, 64),
)
def test_a_response_ratios_step_holds_until_the_instant_that_it_names(
    arrival_at: float, wait: float, size: int, steps: int
) -> None:
    policy, now = Hrrn(HrrnParams(steps)), arrival_at + wait
    waiting = Queued(1, arrival_at, num_prompt_tokens=size, true_remaining=0)
    ranked = policy.rank(waiting, now=now)
    assert ranked.until_at > now
    between = (now + ranked.until_at) / 2
    if now <= between < ranked.until_at:
        assert policy.rank(waiting, now=between) == ranked
    assert policy.rank(waiting, now=ranked.until_at).rank < ranked.rank


def test_a_deadline_queue_goes_by_class_and_lets_who_runs_run() -> None:
    found = served(
        SloQueue(),
        [
            Queued(1, 0.0, is_read=False),
            Queued(2, 9.0),
            Queued(3, 8.5, reasons=True),
            Queued(4, 99.0, running=True),
        ],
    )
    assert found == [4, 2, 3, 1]


def test_qoserve_decodes_first_and_orders_prompts_by_deadline_and_what_is_left() -> None:
    decoding = Queued(1, 50.0, decoding=True)
    # Due at 1 + 0.8, at 2 + 0.8, and at 0.5 + 1 + 8 s.
    chat, reasons = Queued(2, 0.0), Queued(3, 0.0, reasons=True)
    long = Queued(4, 0.5, num_prompt_tokens=1000)
    half_done = Queued(5, 0.5, num_prompt_tokens=1000, attained_tokens=900, running=True)
    queued = [long, reasons, chat, decoding, half_done]
    assert served(Qoserve(), queued) == [1, 2, 5, 3, 4]
    earliest = Qoserve(QoserveParams(alpha=0.0))
    assert served(earliest, queued) == [1, 2, 4, 5, 3]


def test_qoserve_takes_the_time_of_an_unread_answer_off_its_limit() -> None:
    short = Queued(1, 0.0, is_read=False, predicted_remaining=100.0)
    long = Queued(2, 1.0, is_read=False, predicted_remaining=500.0)
    assert served(Qoserve(), [short, long]) == [2, 1]


def test_qoserve_relegates_for_good_who_cannot_be_in_time_and_has_not_begun() -> None:
    policy = Qoserve()
    policy.learn(Costs(prefill_per_token=0.01))
    late, begun = Queued(1, 0.0), Queued(2, 0.0, running=True)
    again, fresh = Queued(3, 0.0, num_output_tokens=5), Queued(4, 0.9)
    assert policy.rank(late, now=-0.1).until_at == pytest.approx(0.0)  # 1 s less 100 tokens' time
    queued = [late, begun, again, fresh]
    assert served(policy, queued, now=0.5) == [2, 3, 4, 1]
    assert served(policy, [late, fresh], now=-5.0) == [4, 1]
    policy.forget(late.key)
    assert served(policy, [late, fresh], now=-5.0) == [1, 4]
    untold = Qoserve()
    assert served(untold, queued, now=0.5) == [1, 2, 3, 4]


@given(
    counts=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    weight=st.sampled_from([1.0, 3.0]),
    sizes=st.tuples(st.integers(1, 500), st.integers(1, 500)),
)
def test_classes_that_wait_get_tokens_by_their_weight_however_many_they_send(
    counts: tuple[int, int], weight: float, sizes: tuple[int, int]
) -> None:
    """While both wait, what each got by its weight differs by a request of either at most."""
    policy = Wfq(WfqParams(chat=weight, output_weight=0.0))
    kinds = [(False, n) for n in range(counts[0])] + [(True, n) for n in range(counts[1])]
    waiting = [
        Queued(place, float(place), num_prompt_tokens=sizes[reasons], reasons=reasons)
        for place, (reasons, _) in enumerate(kinds)
    ]
    got = [0.0, 0.0]
    bound = sizes[0] / weight + sizes[1]
    left = list(counts)
    for name in served(policy, waiting):
        if not all(left):
            break
        reasons = waiting[name].reasons
        left[reasons] -= 1
        got[reasons] += sizes[reasons] / (1.0 if reasons else weight)
        assert abs(got[0] - got[1]) <= bound


def test_a_class_that_was_away_gets_no_arrears() -> None:
    policy = Wfq(WfqParams(output_weight=0.0))
    chats = [Queued(n, float(n), running=True) for n in range(50)]
    served(policy, chats)
    late, next_chat = Queued(98, 60.0, reasons=True), Queued(99, 59.0)
    assert served(policy, [late, next_chat]) == [98, 99]
    assert policy.rank(late, now=0.0).rank[1] >= policy.rank(chats[-1], now=0.0).rank[1]


def test_jitserve_serves_the_least_slack_first_and_who_is_late_last() -> None:
    reader = Queued(1, 0.0, phase=Phase.ANSWERING, in_hand_until=3.0)
    chat = Queued(2, 0.5, opens_answer=True)  # its first token is due at 1.5 s
    late = Queued(3, -9.0, opens_answer=True)
    unread = Queued(4, 0.0, is_read=False, predicted_remaining=560.0)
    # 560 tokens are taken for 840, which is 42 s: too late for 30 s. Half done, 28 s are too late.
    assert served(Jitserve(), [unread, late, reader, chat], now=1.0) == [2, 1, 4, 3]
    relaxed = Queued(5, 0.0, is_read=False, predicted_remaining=280.0, num_output_tokens=280)
    assert served(Jitserve(), [relaxed, reader], now=1.0) == [1, 5]  # it has to go on at 12.5 s


def test_split_has_one_place_for_the_oldest_large_request() -> None:
    short, long = Queued(1, 5.0, true_remaining=10), Queued(2, 1.0, true_remaining=3000)
    longer, older = Queued(3, 2.0, true_remaining=5000), Queued(4, 0.0, true_remaining=500)
    policy = Split()
    for each in (short, long, longer, older):
        policy.rank(each, now=9.0)
    assert served(policy, [longer, older, short, long], now=9.0) == [2, 1, 4, 3]
    policy.forget(long.key)
    assert served(policy, [longer, older, short], now=9.0) == [3, 1, 4]


def test_split_takes_what_was_served_for_the_size_of_an_unknown_request() -> None:
    unknown = Queued(1, 0.0, attained_tokens=120)
    short = Queued(2, 1.0, true_remaining=10)
    assert served(Split(), [unknown, short]) == [2, 1]
    assert served(Split(SplitParams(large_tokens=100)), [unknown, short]) == [1, 2]
