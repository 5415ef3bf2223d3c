"""STAR, Fig. 5: a prefilled request is placed by its input and predicted output length."""

from __future__ import annotations

import numpy as np
import pytest

from headway.cluster import UnitId
from headway.policies.placement import Choice, DecodeUnit
from headway.policies.placement.ahead import LoadAhead
from headway.policies.placement.least_kv import LeastKv
from headway.policies.placement.min_cost import MinCost, MinCostParams
from headway.policies.placement.star import StarPlacement
from headway.policies.rescheduling.star import step_weights
from headway.presets import find_preset
from tests.fakes.candidates import Prompt

STEP = 100


def unit(number: int, *loads: float, requests: int = 1, blocks: int = 1000) -> DecodeUnit:
    """Blocks of 10 tokens; ``loads`` now and after each step."""
    ahead = LoadAhead(np.array(loads), STEP)
    kv_tokens = int(loads[0])
    free = blocks - kv_tokens // 10
    return DecodeUnit(UnitId("w", number), requests, kv_tokens, free, blocks, 10, ahead=ahead)


def where(choices: list[Choice[Prompt]]) -> list[int]:
    return [choice.unit.unit for choice in choices]


def test_a_unit_that_is_light_now_and_heavy_soon_is_not_chosen() -> None:
    units = [unit(0, 400, 900, 1400, 1900), unit(1, 500, 400, 300, 200)]
    assert where(LeastKv().place([Prompt(1)], units)) == [0]
    units = [unit(0, 400, 900, 1400, 1900), unit(1, 500, 400, 300, 200)]
    assert where(StarPlacement().place([Prompt(1)], units)) == [1]


def test_a_request_that_ends_soon_is_placed_by_the_loads_of_soon() -> None:
    def units() -> list[DecodeUnit]:
        return [unit(0, 400, 900, 1400, 1900), unit(1, 500, 400, 300, 200)]

    soon, late = Prompt(1, predicted_remaining=50.0), Prompt(1, predicted_remaining=500.0)
    assert where(StarPlacement().place([soon], units())) == [0]
    assert where(StarPlacement().place([late], units())) == [1]


def test_the_choice_is_the_one_with_the_least_rise_of_the_weighted_variance() -> None:
    rng = np.random.default_rng(7)
    weights = step_weights(4, 0.98)
    for _ in range(200):
        loads = rng.integers(0, 5000, (5, 5)).astype(float)
        request = Prompt(1, int(rng.integers(1, 500)), 0.0, float(rng.integers(0, 600)))
        trace = LoadAhead(loads[0], STEP).trace(request.num_tokens, request.predicted_remaining)
        rises = []
        for number in range(5):
            after = loads.copy()
            after[number] += trace
            rises.append(float(weights @ (after.var(axis=0) - loads.var(axis=0))))
        units = [unit(number, *row) for number, row in enumerate(loads)]
        (choice,) = StarPlacement().place([request], units)
        assert rises[choice.unit.unit] == pytest.approx(min(rises))


def test_a_request_of_unknown_length_counts_as_its_present_tokens_throughout() -> None:
    ahead = LoadAhead(np.zeros(4), STEP)
    assert ahead.trace(30, 0.0).tolist() == [30, 30, 30, 30]
    assert ahead.trace(30, 150.0).tolist() == [30, 130, 0, 0]
    assert ahead.trace(30, 1e9).tolist() == [30, 130, 230, 330]


def test_who_was_placed_before_counts_with_its_growth() -> None:
    units = [unit(0, 0, 0, 0), unit(1, 20, 20, 20)]
    long, next_one = Prompt(1, 10, 0.0, 1e4), Prompt(2, 10, 1.0, 1e4)
    assert where(StarPlacement().place([long, next_one], units)) == [0, 1]


@pytest.mark.parametrize("policy", [StarPlacement(), MinCost(MinCostParams(c=1.0, d=0.0))])
def test_a_unit_whose_memory_will_not_suffice_comes_last(policy: StarPlacement | MinCost) -> None:
    grows = unit(0, 10, 900, 950, blocks=100)
    steady = unit(1, 600, 600, 600, requests=2, blocks=100)
    request = Prompt(1, 10, predicted_remaining=150.0)
    assert where(policy.place([request], [grows, steady])) == [1]
    only = unit(0, 10, 900, 950, blocks=100)
    assert where(policy.place([request], [only])) == [0], "it does not wait for what may come"


def test_min_cost_counts_the_mean_of_the_predicted_load() -> None:
    policy = MinCost(MinCostParams(c=0.0, d=1.0))
    units = [unit(0, 400, 900, 1400), unit(1, 500, 400, 300)]
    (choice,) = policy.place([Prompt(1)], units)
    assert (choice.unit.unit, choice.score) == (1, (400.0, 400.0))


def test_where_a_token_costs_nothing_that_can_be_measured_min_cost_goes_by_the_load() -> None:
    policy = MinCost(MinCostParams(c=1.0, d=0.0))
    units = [unit(0, 500, 500, 500), unit(1, 400, 400, 400)]
    (choice,) = policy.place([Prompt(1)], units)
    assert choice.unit.unit == 1


def test_without_a_prediction_both_go_by_the_present_load() -> None:
    def plain() -> list[DecodeUnit]:
        return [DecodeUnit(UnitId("w", u), 1, k, 900, 1000, 10) for u, k in enumerate((50, 40))]

    assert where(StarPlacement().place([Prompt(1)], plain())) == [1]
    assert where(MinCost().place([Prompt(1)], plain())) == [1]


def test_the_preset_star_places_so() -> None:
    assert find_preset("star").placement == "star"
