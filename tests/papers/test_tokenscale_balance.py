"""TokenScale's decoder balance, and the random baseline."""

from __future__ import annotations

import pytest

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.policies.placement import DecodeUnit
from headway.policies.placement.bucket_balance import BucketBalance, BucketBalanceParams
from headway.policies.placement.random import RandomParams, RandomPlacement
from tests.fakes.candidates import Prompt


def unit(
    name: str, counts: dict[int, int], kv: int = 0, *, convertible: bool = False
) -> DecodeUnit:
    found = DecodeUnit(UnitId(name, 0), sum(counts.values()), kv, 100, 100, 10)
    found.bucket_counts = [counts.get(bucket, 0) for bucket in range(9)]
    found.is_convertible = convertible
    return found


def test_a_request_goes_where_the_fewest_of_its_kind_are() -> None:
    units = [unit("a", {0: 2, 1: 1}), unit("b", {0: 1, 1: 7})]
    choices = BucketBalance().place([Prompt(1), Prompt(2, bucket=1)], units)
    assert [c.unit.worker_id for c in choices] == ["b", "a"]


def test_those_placed_count_for_the_next() -> None:
    units = [unit("a", {}), unit("b", {})]
    choices = BucketBalance().place([Prompt(n) for n in range(4)], units)
    assert [c.unit.worker_id for c in choices] == ["a", "b", "a", "b"]


def test_a_convertible_decoder_keeps_what_it_reserves_for_prompts() -> None:
    units = [unit("a", {0: 9}), unit("b", {}, kv=600, convertible=True)]
    policy = BucketBalance(BucketBalanceParams(reserved_tokens=500))
    assert [c.unit.worker_id for c in policy.place([Prompt(1)], units)] == ["a"]


def test_what_is_reserved_is_for_convertible_decoders_alone() -> None:
    units = [unit("a", {0: 9}), unit("b", {}, kv=600)]
    policy = BucketBalance(BucketBalanceParams(reserved_tokens=500))
    assert [c.unit.worker_id for c in policy.place([Prompt(1)], units)] == ["b"]


def test_a_convertible_decoder_takes_requests_up_to_what_it_reserves() -> None:
    units = [unit("a", {0: 9}), unit("b", {}, kv=495, convertible=True)]
    policy = BucketBalance(BucketBalanceParams(reserved_tokens=500))
    choices = policy.place([Prompt(1), Prompt(2)], units)
    assert [c.unit.worker_id for c in choices] == ["b", "a"]


def test_ties_go_to_the_least_kv_and_then_to_the_lower_id() -> None:
    by_kv = [unit("a", {0: 1}, kv=30), unit("b", {0: 1}, kv=20)]
    assert BucketBalance().place([Prompt(1)], by_kv)[0].unit.worker_id == "b"
    by_id = [unit("b", {0: 1}), unit("a", {0: 1})]
    assert BucketBalance().place([Prompt(1)], by_id)[0].unit.worker_id == "a"


def test_a_unit_without_room_is_passed_and_who_fits_nowhere_waits() -> None:
    units = [unit("a", {}), unit("b", {0: 9})]
    units[0].num_free_blocks = 0
    assert BucketBalance().place([Prompt(1)], units)[0].unit.worker_id == "b"
    units[1].num_free_blocks = 0
    assert BucketBalance().place([Prompt(2)], units) == []


def test_a_negative_reserve_is_refused_with_the_range() -> None:
    with pytest.raises(HeadwayError, match="reserved_tokens"):
        BucketBalanceParams(reserved_tokens=-1.0)


def test_random_placement_is_the_same_for_the_same_seed_and_asks_for_room() -> None:
    def places(seed: int) -> list[str]:
        units = [unit(name, {}) for name in "abcd"]
        units[2].num_free_blocks = 0
        choices = RandomPlacement(RandomParams(seed)).place([Prompt(n) for n in range(30)], units)
        return [c.unit.worker_id for c in choices]

    assert places(1) == places(1)
    assert set(places(1)) == {"a", "b", "d"}
