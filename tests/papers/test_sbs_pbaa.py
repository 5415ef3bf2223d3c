"""Staggered Batch Scheduling, Algorithm 2: prioritized batch allocation."""

from __future__ import annotations

from headway.cluster import UnitId
from headway.policies.packing import Assigned, Room
from headway.policies.packing.pbaa import Pbaa, PbaaParams
from tests.fakes.candidates import Prompt


def rooms(*capacities: int, blocks: int = 1000) -> list[Room]:
    return [
        Room(UnitId("w", unit), capacity, blocks, 0, 10, empty=False)
        for unit, capacity in enumerate(capacities)
    ]


def where(assigned: list[Assigned[Prompt]]) -> list[tuple[int, int]]:
    return [(a.request.name, a.unit.unit) for a in assigned]


def test_the_longest_request_is_taken_first() -> None:
    new = [Prompt(1, 10), Prompt(2, 90), Prompt(3, 50)]
    assert where(Pbaa().pack([], new, rooms(1000))) == [(2, 0), (3, 0), (1, 0)]


def test_each_goes_to_the_unit_with_the_greatest_capacity() -> None:
    new = [Prompt(1, 60), Prompt(2, 50), Prompt(3, 20)]
    # 60 → unit 1 (40 left); 50 → unit 0 (30 left); 20 → unit 1
    assert where(Pbaa().pack([], new, rooms(80, 100))) == [(1, 1), (2, 0), (3, 1)]


def test_capacity_shrinks_by_what_is_assigned() -> None:
    assigned = Pbaa().pack([], [Prompt(1, 30)], rooms(100))
    assert assigned[0].capacity == 70


def test_a_unit_above_zero_takes_a_request_longer_than_its_capacity_and_goes_negative() -> None:
    assigned = Pbaa().pack([], [Prompt(1, 250)], rooms(100))
    assert assigned[0].capacity == -150


def test_a_request_waits_when_the_best_unit_has_no_capacity() -> None:
    new = [Prompt(1, 250), Prompt(2, 5)]
    assert where(Pbaa().pack([], new, rooms(100))) == [(1, 0)]
    assert where(Pbaa().pack([], [Prompt(1, 5)], rooms(0, -20))) == []


def test_leftovers_are_served_before_longer_new_requests() -> None:
    assigned = Pbaa().pack([Prompt(1, 10)], [Prompt(2, 500)], rooms(10))
    assert where(assigned) == [(1, 0)]


def test_equal_lengths_go_by_arrival_and_then_by_id() -> None:
    new = [Prompt(3, 10, 2.0), Prompt(2, 10, 1.0), Prompt(1, 10, 2.0)]
    assert [name for name, _ in where(Pbaa().pack([], new, rooms(1000)))] == [2, 1, 3]


def test_equal_capacities_go_to_the_lower_unit_id() -> None:
    assert where(Pbaa().pack([], [Prompt(1, 10)], rooms(50, 50, 50)[::-1])) == [(1, 0)]


def test_cached_tokens_do_not_count_against_capacity() -> None:
    units = rooms(100, 50)
    assigned = Pbaa().pack([], [Prompt(1, 100)], units, hits=lambda r: {units[1].unit: 80})
    # unit 0: 100 - 100 = 0; unit 1: 50 - (100 - 80) = 30
    assert where(assigned) == [(1, 1)]
    assert assigned[0].capacity == 30


def test_cache_aware_mode_still_asks_for_capacity_above_zero() -> None:
    units = rooms(20, 0)
    assigned = Pbaa().pack([], [Prompt(1, 100)], units, hits=lambda r: {units[1].unit: 100})
    assert where(assigned) == []  # unit 1 is best, and has none


def test_a_hit_beyond_the_prompt_counts_as_the_prompt() -> None:
    (unit,) = rooms(30)
    assigned = Pbaa().pack([], [Prompt(1, 100)], [unit], hits=lambda r: {unit.unit: 10_000})
    assert assigned[0].capacity == 30


def test_who_waits_for_a_first_visible_token_is_packed_before_who_reasons() -> None:
    reasons = [
        Prompt(1, 10, arrival_at=0.0, opens_answer=False),
        Prompt(2, 10, 9.0, opens_answer=False),
    ]
    reads = [Prompt(3, 90, arrival_at=5.0), Prompt(4, 10, arrival_at=9.5)]
    policy = Pbaa(PbaaParams(order="readers", gamma=0.01, seconds_per_token=1e-3))
    in_turn = [name for name, _ in where(policy.pack(reasons, reads, rooms(1000)))]
    assert set(in_turn[:2]) == {3, 4}
    assert in_turn == [
        *(name for name, _ in where(_boost().pack([], reads, rooms(1000)))),
        *(name for name, _ in where(_boost().pack([], reasons, rooms(1000)))),
    ]


def _boost() -> Pbaa:
    return Pbaa(PbaaParams(order="boost", gamma=0.01, seconds_per_token=1e-3))


def test_a_unit_without_kv_room_is_no_candidate() -> None:
    units = rooms(100, 50)
    units[0].num_free_blocks = 3
    assert where(Pbaa().pack([], [Prompt(1, 40), Prompt(2, 30)], units)) == [(1, 1), (2, 0)]


def test_a_unit_that_is_not_empty_keeps_its_spare_blocks() -> None:
    unit = rooms(1000, blocks=10)[0]
    unit.num_spare_blocks = 2
    assert where(Pbaa().pack([], [Prompt(1, 90)], [unit])) == []
    unit.empty = True
    assert where(Pbaa().pack([], [Prompt(1, 90)], [unit])) == [(1, 0)]


def test_kv_room_shrinks_while_a_batch_is_packed() -> None:
    new = [Prompt(1, 60), Prompt(2, 55), Prompt(3, 40)]
    assert where(Pbaa().pack([], new, rooms(1000, blocks=10))) == [(1, 0), (3, 0)]


def test_both_modes_agree_where_nothing_is_cached() -> None:
    new = [Prompt(i, 7 * i % 53 + 1) for i in range(40)]
    basic = Pbaa().pack(new[:9], new[9:], rooms(90, 40, 130, -5))
    aware = Pbaa().pack(new[:9], new[9:], rooms(90, 40, 130, -5), hits=lambda r: {})
    assert where(basic) == where(aware)


def test_uncapped_the_emptiest_unit_takes_whatever_comes() -> None:
    assert where(Pbaa().pack([], [Prompt(1, 9)], rooms(-50, -9), capped=False)) == [(1, 1)]
