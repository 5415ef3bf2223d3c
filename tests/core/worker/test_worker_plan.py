"""The planner of forward passes: admission, victims, growth, places, and who is hopeless."""

from __future__ import annotations

import pytest

from headway.policies.batching import Batching, Candidate, Ranked
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.policies.batching.sarathi import Sarathi
from headway.policies.batching.srpt import Srpt
from tests.fakes.plans import make_planned, names


class ByName(Batching):
    """The lowest name first; better ones take the blocks of ``yields`` alone."""

    preempts = True

    def __init__(self, *yields: int) -> None:
        self.yields = set(yields)
        self.num_asked = 0

    def rank(self, candidate: Candidate, *, now: float) -> Ranked:
        return Ranked((candidate.key.stream_id,))

    def may_preempt(self, victim: Candidate, for_: Candidate, *, now: float) -> bool:
        self.num_asked += 1
        return victim.key.stream_id in self.yields


# --- admission --------------------------------------------------------------------------


def test_a_pass_serves_in_the_policy_s_order_while_the_chunk_lasts() -> None:
    planned = make_planned(Fcfs(), chunk=10)
    planned.come(1, 8, 3, arrival_at=2.0)
    planned.come(2, 6, 3, arrival_at=1.0)
    items = planned.plan()
    assert [(i.key.stream_id, len(i.token_ids), i.sample) for i in items] == [
        (2, 6, True),
        (1, 4, False),
    ]


def test_a_request_is_admitted_with_blocks_for_all_of_its_tokens() -> None:
    planned = make_planned(Fcfs(), blocks=10, chunk=4)
    sequence = planned.come(1, 30, 2)
    planned.step()
    assert len(sequence.kv.blocks) == 8


def test_admission_leaves_a_watermark_free_for_the_growth_of_those_that_run() -> None:
    planned = make_planned(Fcfs(), blocks=10, watermark=0.2)
    planned.come(1, 16, 5)
    planned.come(2, 17, 5)  # 4 + 5 blocks are there, but not two more
    assert names(planned.step()) == [1]
    planned.come(0, 16, 5)
    assert names(planned.step()) == [1]  # … and nobody overtakes the one that waits


def test_an_empty_unit_needs_no_watermark() -> None:
    planned = make_planned(Fcfs(), blocks=10, watermark=0.5)
    planned.come(1, 38, 2)
    assert names(planned.step()) == [1]


def test_one_that_does_not_fit_blocks_those_behind_it_and_nobody_that_runs() -> None:
    planned = make_planned(Fcfs(), blocks=10)
    planned.come(1, 16, 9, arrival_at=3.0)
    planned.step()
    planned.come(2, 30, 9, arrival_at=1.0)
    planned.come(3, 2, 9, arrival_at=2.0)
    assert names(planned.step()) == [1]  # 3 would fit


# --- victims ----------------------------------------------------------------------------


def test_a_policy_that_does_not_preempt_takes_no_blocks_for_a_better_one() -> None:
    planned = make_planned(Sarathi(), blocks=10)
    planned.come(1, 36, 9, arrival_at=5.0)
    planned.step()
    planned.come(2, 8, 9, arrival_at=1.0)
    assert names(planned.step()) == [1]
    assert planned.planner.preemptions.num_voluntary == 0


def test_a_better_one_takes_the_blocks_of_the_worst_that_may_yield() -> None:
    planned = make_planned(ByName(5, 6, 7), blocks=12)
    for name in (4, 5, 6, 7):
        planned.come(name, 10, 9)
    planned.step()
    planned.come(1, 10, 9)
    assert names(planned.step()) == [1, 4, 5, 6]
    assert planned.preempted[7] == 1
    assert planned.planner.preemptions.num_voluntary == 1
    assert planned.planner.preemptions.num_forced == 0


def test_victims_are_spared_where_the_policy_says_so() -> None:
    planned = make_planned(ByName(5), blocks=12)
    for name in (4, 5, 6, 7):
        planned.come(name, 10, 9)
    planned.step()
    planned.come(1, 10, 9)
    assert names(planned.step()) == [1, 4, 6, 7]


def test_nobody_yields_where_all_together_would_not_be_enough() -> None:
    planned = make_planned(ByName(7), blocks=12)
    for name in (4, 5, 6, 7):
        planned.come(name, 10, 9)
    planned.step()
    planned.come(1, 20, 9)
    assert names(planned.step()) == [4, 5, 6, 7]
    assert planned.planner.preemptions.num_voluntary == 0


def test_a_small_victim_is_spared_where_a_larger_one_alone_is_enough() -> None:
    planned = make_planned(ByName(6, 7), blocks=12)
    for name, prompt in ((5, 14), (6, 24), (7, 6)):
        planned.come(name, prompt, 9)
    planned.step()
    planned.come(1, 24, 9)  # 7 is worse, but its two blocks are not needed beside 6's six
    assert names(planned.step()) == [1, 5, 7]


def test_nobody_enters_past_one_that_has_just_made_room() -> None:
    planned = make_planned(ByName(5), blocks=10)
    planned.come(5, 30, 9)
    planned.step()
    planned.come(7, 10, 9)
    planned.come(1, 10, 1)
    assert names(planned.step()) == [1]  # 7 would fit beside it, and have to yield to 5 at once
    assert names(planned.step()) == [5]


def test_who_stands_before_those_that_made_room_enters_too() -> None:
    planned = make_planned(ByName(5), blocks=10)
    planned.come(5, 30, 9)
    planned.step()
    planned.come(2, 10, 9)
    planned.come(1, 10, 1)
    assert names(planned.step()) == [1, 2]


def test_one_that_was_preempted_computes_its_tokens_again_and_ends() -> None:
    planned = make_planned(ByName(5), blocks=5)
    victim = planned.come(5, 10, 9)
    planned.step(4)
    planned.come(1, 8, 2)
    planned.step()
    assert (victim.kv.num_computed, victim.kv.blocks, victim.num_voluntary) == (0, [], 1)
    planned.finish()
    assert planned.planner.preemptions.by_request == {0: 1, 1: 1}


def test_memory_goes_from_answers_to_reasoning() -> None:
    planned = make_planned(Pascal(PascalParams(quantum=4)), blocks=5)
    planned.come(1, 14, 30)
    planned.step(2)
    planned.come(2, 14, 30, reasoning=20)
    assert names(planned.step()) == [2]


# --- hopeless ---------------------------------------------------------------------------


def test_a_hopeless_one_is_not_asked_about_again_until_something_has_changed() -> None:
    policy = ByName()
    planned = make_planned(policy, blocks=12)
    for name in (4, 5, 6):
        planned.come(name, 10, 40)
    planned.step()
    planned.come(1, 20, 2)
    planned.step(2)
    asked = policy.num_asked
    planned.step(3)
    assert policy.num_asked == asked
    planned.come(0, 20, 2)
    planned.step()
    assert policy.num_asked == asked + 3


def test_a_hopeless_one_is_admitted_as_soon_as_there_is_room() -> None:
    planned = make_planned(ByName(), blocks=12)
    for name in (4, 5):
        planned.come(name, 18, 3 * name - 10)
    planned.step()
    planned.come(1, 16, 2)
    assert names(planned.step()) == [4, 5]  # the last token of 4
    assert names(planned.step()) == [1, 5]


# --- growth -----------------------------------------------------------------------------


def test_growth_takes_the_blocks_of_the_last_in_the_order() -> None:
    planned = make_planned(Fcfs(), blocks=6)
    first, last = planned.come(1, 11, 12), planned.come(2, 11, 12)
    while not last.num_preemptions:
        planned.step()
    assert (first.num_preemptions, last.num_voluntary) == (0, 0)
    assert planned.planner.preemptions.num_forced == 1
    assert planned.planner.preemptions.num_voluntary == 0
    planned.finish()


def test_nobody_is_admitted_past_one_that_has_just_lost_its_blocks() -> None:
    planned = make_planned(Fcfs(), blocks=6)
    planned.come(1, 11, 12)
    last = planned.come(2, 11, 12)
    planned.step()
    planned.come(3, 1, 2)
    while not last.num_preemptions:
        items = planned.step()
    assert names(items) == [1]


def test_who_needs_no_block_goes_on_when_the_pool_is_full() -> None:
    planned = make_planned(Fcfs(), blocks=6)
    planned.come(1, 10, 2)
    planned.come(2, 10, 2)
    planned.step()
    assert names(planned.step()) == [1, 2]


# --- places -----------------------------------------------------------------------------


def test_who_finds_no_place_in_the_pass_pauses_and_keeps_its_blocks() -> None:
    planned = make_planned(Srpt(), blocks=20, max_running=2)
    never_served, paused, _ = (
        planned.come(n, 4, output) for n, output in ((1, 30), (2, 20), (3, 9))
    )
    assert names(planned.step()) == [3, 2]
    planned.come(4, 4, 2)
    assert names(planned.step()) == [4, 3]
    assert paused.kv.blocks
    assert not paused.num_preemptions
    assert not never_served.kv.blocks


def test_growth_takes_the_blocks_of_one_that_is_paused() -> None:
    planned = make_planned(ByName(), blocks=6, max_running=1)
    paused = planned.come(5, 10, 5)
    planned.step()
    served = planned.come(1, 10, 8)
    assert names(planned.step(2)) == [1]
    assert paused.kv.blocks
    planned.step(4)
    assert (paused.num_preemptions, served.num_preemptions) == (1, 0)
    planned.finish()


# --- what a rank rests on ---------------------------------------------------------------


@pytest.mark.parametrize("prompt", [16, 17, 18])
def test_the_first_token_ends_the_prefill_wherever_chunks_end(prompt: int) -> None:
    """A last chunk of one token looks like a decode step, and yet ends a phase."""
    planned = make_planned(Pascal(PascalParams(quantum=4)), blocks=40, chunk=16)
    planned.come(1, prompt, 30)
    planned.step(4)
    planned.come(2, 8, 30)  # prefill is in the high queue, the answer of 1 in the low one
    assert names(planned.plan()) == [2, 1]
