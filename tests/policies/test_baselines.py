"""The baselines: immediate dispatch, round-robin packing, simple decode placement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.policies.dispatch import InstanceLoad
from headway.policies.dispatch.immediate import Immediate, ImmediateParams
from headway.policies.packing import Room
from headway.policies.packing.round_robin import RoundRobinPacking
from headway.policies.placement import DecodeUnit
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.round_robin import RoundRobinPlacement
from headway.request import StreamKey


@dataclass(frozen=True)
class Any:
    name: int
    num_tokens: int = 10
    num_growth_tokens: int = 1
    predicted_remaining: float = 0.0
    bucket: int = 0
    barred: Collection[UnitId] = ()

    @property
    def arrival_at(self) -> float:
        return float(self.name)

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.name)


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


def rooms(*capacities: int) -> list[Room]:
    return [Room(UnitId("w", u), c, 100, 0, 10, True) for u, c in enumerate(capacities)]


def test_round_robin_packing_goes_by_arrival_from_unit_to_unit() -> None:
    policy = RoundRobinPacking()
    first = policy.pack([Any(2)], [Any(1), Any(3)], rooms(100, 100))
    assert [(a.request.name, a.unit.unit) for a in first] == [(1, 0), (2, 1), (3, 0)]
    second = policy.pack([], [Any(4)], rooms(100, 100))
    assert [(a.request.name, a.unit.unit) for a in second] == [(4, 1)]


def test_round_robin_packing_passes_units_without_capacity_unless_uncapped() -> None:
    policy = RoundRobinPacking()
    capped = policy.pack([], [Any(1)], rooms(0, 5))
    assert [a.unit.unit for a in capped] == [1]
    uncapped = policy.pack([], [Any(2)], rooms(0, 5), capped=False)
    assert [a.unit.unit for a in uncapped] == [0]


def units(*loads: tuple[int, int]) -> list[DecodeUnit]:
    return [DecodeUnit(UnitId("w", u), b, k, 100, 100, 10) for u, (b, k) in enumerate(loads)]


def test_least_kv_looks_at_memory_alone_in_order_of_arrival() -> None:
    choices = LeastKv().place([Any(2), Any(1, 40)], units((9, 10), (0, 30)))
    assert [(c.request.name, c.unit.unit) for c in choices] == [(1, 0), (2, 1)]


def test_round_robin_placement_passes_units_without_room() -> None:
    policy, state = RoundRobinPlacement(), units((0, 0), (0, 0), (0, 0))
    state[1].num_free_blocks = 0
    choices = policy.place([Any(1), Any(2), Any(3)], state)
    assert [c.unit.unit for c in choices] == [0, 2, 0]
