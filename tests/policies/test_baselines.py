"""The baselines: immediate dispatch, round-robin packing, simple decode placement."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.immediate import Immediate, ImmediateParams
from headway.policies.dispatch.prefill_delayer import PrefillDelayer, PrefillDelayerParams
from headway.policies.packing import Room
from headway.policies.packing.round_robin import RoundRobinPacking
from headway.policies.placement import DecodeUnit
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.round_robin import RoundRobinPlacement
from tests.fakes.candidates import Prompt


def arrived(name: int, num_tokens: int = 10) -> Prompt:
    return Prompt(name, num_tokens, float(name))


def first_of(rule: str, *loads: InstanceLoad) -> str:
    policy = Immediate(ImmediateParams(rule=rule))
    for load in loads:
        policy.join(load.worker_id)
    return policy.turns(loads, 1, now=0.0)[0].worker_id


def load(worker_id: str, tokens: int, outstanding: int, queued: int) -> InstanceLoad:
    return InstanceLoad(worker_id, tokens, tokens, outstanding, queued, False, True)


LOADS = (load("a", 50, 1, 1), load("b", 10, 3, 2), load("c", 90, 2, 0))


@pytest.mark.parametrize(
    ("rule", "winner"),
    [("least-outstanding", "a"), ("least-tokens", "b"), ("join-shortest-queue", "c")],
)
def test_immediate_picks_the_least_of_what_its_rule_counts(rule: str, winner: str) -> None:
    assert first_of(rule, *LOADS) == winner


def test_immediate_takes_one_request_at_a_time_whatever_the_capacity() -> None:
    policy = Immediate()
    policy.join("a")
    turn = policy.turns([LOADS[0]], 7, now=0.0)[0]
    assert (turn.max_requests, turn.capped) == (1, False)


def test_round_robin_goes_round() -> None:
    policy = Immediate()
    for one in LOADS:
        policy.join(one.worker_id)
    order = []
    for dispatch_id in range(5):
        turn = policy.turns(LOADS, 1, now=0.0)[0]
        policy.dispatched(turn, dispatch_id, now=0.0)
        order.append(turn.worker_id)
    assert order == ["a", "b", "c", "a", "b"]


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(HeadwayError, match="round-robin"):
        Immediate(ImmediateParams(rule="fastest"))


def test_an_instance_with_a_full_queue_is_given_no_more() -> None:
    for caps, expected in (
        (ImmediateParams(max_queued_requests=2), ["c", "a"]),
        (ImmediateParams(max_queued_tokens=50), ["b"]),
        (ImmediateParams(), ["a", "b", "c"]),
    ):
        policy = Immediate(caps)
        for one in LOADS:
            policy.join(one.worker_id)
        found = policy.turns(LOADS, 1, now=0.0)
        assert sorted(turn.worker_id for turn in found) == sorted(expected)


def volleys(low_watermark: float = 0.0) -> PrefillDelayer:
    policy = PrefillDelayer(PrefillDelayerParams(max_delay_passes=10, low_watermark=low_watermark))
    for one in LOADS:
        policy.join(one.worker_id)
    return policy


def test_prompts_are_held_until_there_is_one_for_every_instance() -> None:
    policy, two = volleys(), [arrived(0), arrived(1)]
    assert policy.turns(LOADS, 2, now=0.1, waiting=two) == []
    assert policy.wakeup(LOADS, 2, now=0.1) == 0.5  # ten passes after the first came
    three = [*two, arrived(2)]
    turns = policy.turns(LOADS, 3, now=0.2, waiting=three)
    assert [turn.worker_id for turn in turns] == ["b", "a", "c"]
    policy.dispatched(turns[0], 1, now=0.2)
    assert policy.turns(LOADS, 2, now=0.2, waiting=two)  # the rest of the volley


def test_no_prompt_is_held_longer_than_so_many_passes() -> None:
    policy, one = volleys(), [arrived(0)]
    assert policy.turns(LOADS, 1, now=0.499, waiting=one) == []
    (turn, *_) = policy.turns(LOADS, 1, now=0.5, waiting=one)
    policy.dispatched(turn, 1, now=0.5)
    assert policy.turns(LOADS, 1, now=0.6, waiting=[arrived(9)]) == []


def test_an_instance_that_hardly_works_is_given_prompts_at_once() -> None:
    idle = InstanceLoad("a", 0, 0, 0, 0, True, True, kv_tokens=10, free_tokens=990)
    busy = InstanceLoad("b", 0, 0, 0, 0, True, True, kv_tokens=900, free_tokens=100)
    found = volleys(low_watermark=0.2).turns([idle, busy], 1, now=0.0, waiting=[arrived(0)])
    assert [turn.worker_id for turn in found] == ["a"]


EVENTS = st.lists(st.tuples(st.booleans(), st.floats(0.001, 1.0)), max_size=40)


@given(events=EVENTS)
def test_held_prompts_all_leave_in_time_and_in_volleys(events: list[tuple[bool, float]]) -> None:
    """Whatever comes when: asked again at the instant it named, the delayer lets prompts go."""
    policy, now, waiting, next_name = volleys(), 0.0, list[Prompt](), 0
    for comes, gap in events:
        due_at = policy.wakeup(LOADS, len(waiting), now=now)
        assert due_at is None or due_at > now
        now = min(now + gap, due_at or inf)
        if comes:
            waiting.append(Prompt(next_name, arrival_at=now))
            next_name += 1
        while waiting and (turns := policy.turns(LOADS, len(waiting), now=now, waiting=waiting)):
            policy.dispatched(turns[0], next_name, now=now)
            waiting.pop(0)
        assert len(waiting) < len(LOADS)
        assert all(now < each.arrival_at + 10 * policy.mean_pass_time for each in waiting)


def rooms(*capacities: int) -> list[Room]:
    return [Room(UnitId("w", u), c, 100, 0, 10, True) for u, c in enumerate(capacities)]


def test_round_robin_packing_goes_by_arrival_from_unit_to_unit() -> None:
    policy = RoundRobinPacking()
    first = policy.pack([arrived(2)], [arrived(1), arrived(3)], rooms(100, 100))
    assert [(a.request.name, a.unit.unit) for a in first] == [(1, 0), (2, 1), (3, 0)]
    second = policy.pack([], [arrived(4)], rooms(100, 100))
    assert [(a.request.name, a.unit.unit) for a in second] == [(4, 1)]


def test_round_robin_packing_passes_units_without_capacity_unless_uncapped() -> None:
    policy = RoundRobinPacking()
    capped = policy.pack([], [arrived(1)], rooms(0, 5))
    assert [a.unit.unit for a in capped] == [1]
    uncapped = policy.pack([], [arrived(2)], rooms(0, 5), capped=False)
    assert [a.unit.unit for a in uncapped] == [0]


def units(*loads: tuple[int, int]) -> list[DecodeUnit]:
    return [DecodeUnit(UnitId("w", u), b, k, 100, 100, 10) for u, (b, k) in enumerate(loads)]


def test_least_kv_looks_at_memory_alone_in_order_of_arrival() -> None:
    choices = LeastKv().place([arrived(2), arrived(1, 40)], units((9, 10), (0, 30)))
    assert [(c.request.name, c.unit.unit) for c in choices] == [(1, 0), (2, 1)]


def test_round_robin_placement_passes_units_without_room() -> None:
    policy, state = RoundRobinPlacement(), units((0, 0), (0, 0), (0, 0))
    state[1].num_free_blocks = 0
    choices = policy.place([arrived(1), arrived(2), arrived(3)], state)
    assert [c.unit.unit for c in choices] == [0, 2, 0]
