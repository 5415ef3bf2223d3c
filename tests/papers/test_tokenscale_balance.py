"""TokenScale's decoder balance, and the random baseline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headway.cluster import UnitId
from headway.policies.placement import DecodeUnit
from headway.policies.placement.bucket_balance import BucketBalance, BucketBalanceParams
from headway.policies.placement.random import RandomParams, RandomPlacement
from headway.request import StreamKey


@dataclass(frozen=True)
class Sorted:
    name: int
    bucket: int = 0
    num_tokens: int = 10
    num_growth_tokens: int = 1
    barred: Collection[UnitId] = ()

    @property
    def arrival_at(self) -> float:
        return float(self.name)

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.name)


def unit(
    name: str, counts: dict[int, int], kv: int = 0, *, convertible: bool = False
) -> DecodeUnit:
    found = DecodeUnit(UnitId(name, 0), sum(counts.values()), kv, 100, 100, 10)
    found.bucket_counts = [counts.get(bucket, 0) for bucket in range(9)]
    found.is_convertible = convertible
    return found


def test_a_request_goes_where_the_fewest_of_its_kind_are() -> None:
    units = [unit("a", {0: 2, 1: 1}), unit("b", {0: 1, 1: 7})]
    choices = BucketBalance().place([Sorted(1, 0), Sorted(2, 1)], units)
    assert [c.unit.worker_id for c in choices] == ["b", "a"]


def test_those_placed_count_for_the_next() -> None:
    units = [unit("a", {}), unit("b", {})]
    choices = BucketBalance().place([Sorted(n) for n in range(4)], units)
    assert [c.unit.worker_id for c in choices] == ["a", "b", "a", "b"]


def test_a_convertible_decoder_keeps_what_it_reserves_for_prompts() -> None:
    units = [unit("a", {0: 9}), unit("b", {}, kv=600, convertible=True)]
    policy = BucketBalance(BucketBalanceParams(reserved_tokens=500))
    assert [c.unit.worker_id for c in policy.place([Sorted(1)], units)] == ["a"]


def test_random_placement_is_the_same_for_the_same_seed_and_asks_for_room() -> None:
    def places(seed: int) -> list[str]:
        units = [unit(name, {}) for name in "abcd"]
        units[2].num_free_blocks = 0
        choices = RandomPlacement(RandomParams(seed)).place([Sorted(n) for n in range(30)], units)
        return [c.unit.worker_id for c in choices]

    assert places(1) == places(1)
    assert set(places(1)) == {"a", "b", "d"}
