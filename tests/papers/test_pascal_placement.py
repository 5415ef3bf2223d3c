"""PASCAL, Algorithms 1 and 2: where a request reasons, and where it answers."""

from __future__ import annotations

import pytest

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.immediate import Immediate, ImmediateParams
from headway.policies.placement import DecodeUnit
from headway.policies.placement.min_cost import MinCost
from headway.policies.placement.pascal import PascalPlacement, PascalPlacementParams
from tests.fakes.candidates import Prompt


def unit(
    name: str,
    kv: int = 0,
    *,
    host: int = 0,
    reasoning: int = 0,
    fresh: int = 0,
    on_schedule: bool = True,
) -> DecodeUnit:
    free = 100 - -(-kv // 10)
    return DecodeUnit(UnitId(name, 0), 1, kv, free, 100, 10, host, reasoning, fresh, on_schedule)


def placed(*units: DecodeUnit) -> str:
    return PascalPlacement().place([Prompt(num_tokens=100)], list(units))[0].unit.worker_id


def answers_at(
    here: DecodeUnit, *others: DecodeUnit, migrates: bool = True, adaptive: bool = True
) -> str:
    policy = PascalPlacement(PascalPlacementParams(migrates, adaptive))
    choice = policy.boundary(Prompt(num_tokens=100), here, [here, *others])
    return choice.unit.worker_id if choice is not None else "stays"


def test_a_new_request_goes_where_the_least_kv_is() -> None:
    assert placed(unit("a", 300), unit("b", 200), unit("c", 400)) == "b"


def test_kv_in_host_memory_counts() -> None:
    assert placed(unit("a", 300), unit("b", 200, host=200)) == "a"


def test_an_instance_whose_readers_wait_takes_no_new_request() -> None:
    assert placed(unit("a", 100, on_schedule=False), unit("b", 500)) == "b"


def test_all_are_asked_where_readers_wait_everywhere() -> None:
    units = unit("a", 100, on_schedule=False), unit("b", 500, on_schedule=False)
    assert placed(*units) == "a"


def test_new_requests_count_for_the_next() -> None:
    units = [unit("a", 300), unit("b", 250)]
    choices = PascalPlacement().place([Prompt(n, 100) for n in range(3)], units)
    assert [c.unit.worker_id for c in choices] == ["b", "a", "b"]


def test_a_compliant_instance_without_room_leaves_the_request_to_the_others() -> None:
    assert placed(unit("a", 995), unit("b", 500, on_schedule=False)) == "b"


def test_a_headroom_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(HeadwayError, match="headroom"):
        PascalPlacementParams(headroom=1.5)


def test_an_answer_goes_where_the_fewest_reason() -> None:
    assert answers_at(unit("a", reasoning=5), unit("b", reasoning=2), unit("c", reasoning=3)) == "b"


def test_an_answer_avoids_instances_whose_readers_wait() -> None:
    others = unit("b", reasoning=0, on_schedule=False), unit("c", reasoning=3)
    assert answers_at(unit("a", reasoning=5), *others) == "c"


def test_fresh_answers_count_where_readers_wait_everywhere() -> None:
    here = unit("a", reasoning=9, on_schedule=False)
    others = (
        unit("b", reasoning=1, fresh=5, on_schedule=False),
        unit("c", reasoning=3, fresh=1, on_schedule=False),
    )
    assert answers_at(here, *others) == "c"


def test_fresh_answers_do_not_count_where_an_instance_is_compliant() -> None:
    others = unit("b", reasoning=1, fresh=9), unit("c", reasoning=2)
    assert answers_at(unit("a", reasoning=5), *others) == "b"


def test_the_present_instance_is_left_if_its_readers_wait() -> None:
    assert answers_at(unit("a", reasoning=0, on_schedule=False), unit("b", reasoning=4)) == "b"


def test_kv_in_host_memory_counts_in_ties() -> None:
    assert answers_at(unit("c", 50), unit("a", 20, host=40), unit("b", 30)) == "b"


def test_ties_between_other_instances_go_to_the_lower_id() -> None:
    here = unit("a", reasoning=5)
    assert answers_at(here, unit("c", 20), unit("b", 20)) == "b"


def test_ties_go_to_the_least_kv_then_stay() -> None:
    assert answers_at(unit("b", 50), unit("a", 20)) == "a"
    assert answers_at(unit("b", 20), unit("a", 20)) == "stays"


def test_where_there_is_room_an_answer_does_not_leave_for_a_full_instance() -> None:
    here, full = unit("a", 100, reasoning=5), unit("b", 950)
    assert answers_at(here, full) == "stays"
    assert answers_at(here, full, adaptive=False) == "b"


def test_without_room_here_the_chosen_instance_is_taken_full_or_not() -> None:
    assert answers_at(unit("a", 1000, reasoning=5), unit("b", 950)) == "b"


def test_without_migration_answers_stay() -> None:
    assert answers_at(unit("a", reasoning=5), unit("b"), migrates=False) == "stays"


def test_unified_instances_are_chosen_by_the_same_rule_at_arrival() -> None:
    loads = [
        InstanceLoad(name, 0, 0, 0, 0, True, True, kv_tokens=kv, is_on_schedule=on_schedule)
        for name, kv, on_schedule in (("a", 50, False), ("b", 90, True), ("c", 70, True))
    ]
    policy = Immediate(ImmediateParams(rule="pascal"))
    for each in loads:
        policy.join(each.worker_id)
    assert [turn.worker_id for turn in policy.turns(loads, 1, now=0.0)] == ["c", "b", "a"]


def test_the_pipeline_moves_an_answer_only_from_a_full_unit_to_one_with_room() -> None:
    full, free, busy = unit("a", 980), unit("b", 500), unit("c", 850)
    choice = MinCost().boundary(Prompt(num_tokens=100), full, [full, free, busy])
    assert choice is not None
    assert choice.unit.worker_id == "b"
    assert MinCost().boundary(Prompt(num_tokens=100), full, [full, busy]) is None
    assert MinCost().boundary(Prompt(num_tokens=100), busy, [full, free, busy]) is None


def test_where_neither_has_room_an_answer_goes_to_a_third_that_has() -> None:
    here, chosen, roomy = unit("a", 1000, reasoning=5), unit("b", 950), unit("c", 100, reasoning=2)
    assert answers_at(here, chosen, roomy) == "c"
    assert answers_at(here, chosen, roomy, adaptive=False) == "b"


def test_an_answer_does_not_stay_on_a_full_instance_for_a_reader_who_waits_elsewhere() -> None:
    here = unit("a", 1000, reasoning=5)
    assert answers_at(here, unit("b", 100, on_schedule=False)) == "b"
    assert answers_at(here, unit("b", 950, on_schedule=False)) == "stays"


def test_kv_that_waits_in_host_memory_for_blocks_leaves_no_room_for_an_answer() -> None:
    here = unit("a", 500, host=600, reasoning=5)
    assert answers_at(here, unit("b", 100, on_schedule=False)) == "b"
    assert answers_at(unit("a", 100, reasoning=5), unit("b", 500, host=600)) == "stays"


def test_answers_may_be_told_to_go_to_the_least_kv_where_no_reader_waits() -> None:
    policy = PascalPlacement(PascalPlacementParams(fewest="kv"))
    here, few, light = unit("a", 400, reasoning=5), unit("b", 300), unit("c", 200, reasoning=9)
    late = unit("d", 100, on_schedule=False)
    choice = policy.boundary(Prompt(num_tokens=100), here, [here, few, light, late])
    assert choice is not None
    assert choice.unit.worker_id == "c"
    assert choice.score == policy.scores(Prompt(num_tokens=100), [light], here)[0]
    assert policy.boundary(Prompt(num_tokens=100), light, [light, few]) is None


def test_another_word_for_what_is_fewest_is_refused() -> None:
    with pytest.raises(HeadwayError, match="fewest"):
        PascalPlacementParams(fewest="requests")


def test_answers_may_be_told_to_leave_full_instances_only() -> None:
    policy = PascalPlacement(PascalPlacementParams(from_full=True))
    roomy, full, empty = unit("a", 100, reasoning=5), unit("a", 1000, reasoning=5), unit("b", 100)
    assert policy.boundary(Prompt(num_tokens=100), roomy, [roomy, empty]) is None
    choice = policy.boundary(Prompt(num_tokens=100), full, [full, empty])
    assert choice is not None
    assert choice.unit.worker_id == "b"
