"""STAR, Algorithm 1: which running request moves where."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.rescheduling import Horizon, Requests, UnitReport, simulate_future
from headway.policies.rescheduling.current_load import CurrentLoad
from headway.policies.rescheduling.none import NoRescheduling
from headway.policies.rescheduling.star import Star, StarParams, step_weights
from headway.request import StreamKey

NOBODY: frozenset[StreamKey] = frozenset()


def key(number: int) -> StreamKey:
    return StreamKey("g", number)


def unit(
    name: str, *requests: tuple[int, int, float], capacity: int = 100_000, accepts: bool = True
) -> UnitReport:
    """Requests as (number, tokens, remaining)."""
    return UnitReport(
        unit=UnitId(name, 0),
        capacity_tokens=capacity,
        requests=Requests(
            tuple(key(number) for number, _, _ in requests),
            np.array([tokens for _, tokens, _ in requests], dtype=np.int64),
            np.array([remaining for _, _, remaining in requests], dtype=np.float64),
        ),
        num_tokens=sum(tokens for _, tokens, _ in requests),
        accepts=accepts,
    )


def moved(
    units: list[UnitReport], resting: frozenset[StreamKey] = NOBODY, **params: float
) -> object:
    found = Star(StarParams(**params)).moves(units, resting, now=0.0)  # type: ignore[arg-type]
    return [(m.key.stream_id, m.source.worker_id, m.target.worker_id) for m in found]


CROWDED = unit("a", (1, 4000, 3000), (2, 3000, 3000), (3, 2000, 10))
FREE = unit("b", (4, 1000, 1000))


def test_the_future_adds_a_token_a_step_while_a_request_runs() -> None:
    assert simulate_future([10, 20], [3, 1], Horizon(4, 1)).tolist() == [11.0, 12.0, 0.0, 0.0]


def test_what_nothing_is_known_of_counts_as_its_current_load() -> None:
    assert simulate_future([10, 20, 5], [nan, 2, -1], Horizon(3, 1)).tolist() == [36, 15, 15]


def test_half_of_the_weight_is_on_now_and_the_rest_is_geometric() -> None:
    weights = step_weights(4, 0.5)
    assert weights[0] == 0.5
    assert weights.sum() == pytest.approx(1.0)
    assert weights[2] / weights[1] == pytest.approx(0.5)


def test_a_request_moves_from_the_overloaded_to_the_underloaded() -> None:
    assert moved([CROWDED, FREE]) == [(1, "a", "b")]


def test_nothing_moves_between_like_loads() -> None:
    assert moved([unit("a", (1, 1000, 500)), unit("b", (2, 1010, 500))]) == []


def test_who_ends_before_the_move_would_pay_stays() -> None:
    units = [unit("a", (1, 4000, 19), (2, 100, 500)), unit("b", (3, 1000, 500))]
    assert (1, "a", "b") not in moved(units, migration_passes=20)  # type: ignore[operator]


def test_a_target_must_hold_the_request_and_all_it_will_generate() -> None:
    tight = unit("b", (4, 1000, 1000), capacity=7500)
    assert moved([CROWDED, tight]) == [(2, "a", "b")]  # 1000 + 4000 + 3000 is too much for 1


def test_a_request_larger_than_every_capacity_stays() -> None:
    small = unit("b", (4, 10, 10), capacity=100)
    assert moved([CROWDED, small]) == []


def test_who_moved_a_moment_ago_rests() -> None:
    assert moved([CROWDED, FREE], frozenset([key(1)])) == [(2, "a", "b")]


def test_a_unit_that_drains_is_no_target() -> None:
    assert moved([CROWDED, unit("b", (4, 1000, 1000), accepts=False)]) == []


def test_a_pair_of_units_has_one_move_an_interval() -> None:
    crowd = unit("a", *((n, 1000, 3000.0) for n in range(20)))
    assert len(moved([crowd, unit("b")], units_per_move=1)) == 1  # type: ignore[arg-type]


def test_eight_units_have_one_move_an_interval() -> None:
    crowd = unit("a", *((n, 1000, 3000.0) for n in range(20)))
    others = [unit(f"b{n}") for n in range(7)]
    assert len(moved([crowd, *others])) == 1  # type: ignore[arg-type]
    assert len(moved([crowd, *others], units_per_move=4)) == 2  # type: ignore[arg-type]


def test_equal_gains_go_to_the_lower_ids() -> None:
    crowd = unit("a", (2, 1000, 3000), (1, 1000, 3000), (3, 1000, 3000))
    assert moved([crowd, unit("b"), unit("c")]) == [(1, "a", "b")]


def test_a_small_gain_is_not_worth_a_move() -> None:
    units = [unit("a", (1, 5000, 3000), (2, 60, 30)), unit("b", (3, 4000, 3000))]
    assert moved(units, theta=0.0, floor=1.0) == []


def test_prediction_sees_load_that_is_yet_to_come() -> None:
    """Now the loads are alike; later all of b's requests will have ended."""
    units = [unit("a", (1, 2000, 9000), (2, 2000, 9000)), unit("b", (3, 2000, 30), (4, 1900, 30))]
    assert moved(units, theta=0.01) == []  # b is not underloaded while it is full
    later = [units[0], unit("b", (4, 1900, 30))]
    assert moved(later) == [(1, "a", "b")]


def test_without_prediction_current_loads_decide() -> None:
    units = [unit("a", (1, 3000, 1), (2, 3000, 1)), unit("b", (3, 100, 9000))]
    found = CurrentLoad().moves(units, NOBODY, now=0.0)
    assert [m.key.stream_id for m in found] == [1]


def test_none_moves_nothing_and_never_asks() -> None:
    policy = NoRescheduling()
    assert policy.moves([CROWDED, FREE], NOBODY, now=0.0) == []
    assert policy.interval == float("inf")


def test_a_parameter_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(HeadwayError, match="theta"):
        registry.make("rescheduling", "star", theta=-1)
