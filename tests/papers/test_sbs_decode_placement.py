"""Staggered Batch Scheduling, Algorithm 3: IQR-aware lexicographic decode placement."""

from __future__ import annotations

from math import inf, nan

import pytest

from headway.cluster import UnitId
from headway.errors import HeadwayError
from headway.metrics import percentile
from headway.policies.placement import Choice, DecodeUnit
from headway.policies.placement.greedy import outlier_bound
from headway.policies.placement.iqr_lex import IqrLex, IqrLexParams
from headway.policies.placement.lex import Lex
from headway.policies.placement.min_cost import MinCost, MinCostParams
from tests.fakes.candidates import Prompt


def units(*loads: tuple[int, int], free: int = 1000, blocks: int = 1000) -> list[DecodeUnit]:
    return [DecodeUnit(UnitId("w", u), b, k, free, blocks, 10) for u, (b, k) in enumerate(loads)]


def where(choices: list[Choice[Prompt]]) -> list[tuple[int, int]]:
    return [(c.request.name, c.unit.unit) for c in choices]


def test_percentiles_are_interpolated_linearly() -> None:
    assert percentile([1, 2, 3, 4], 0.25) == pytest.approx(1.75)
    assert percentile([1, 2, 3, 4], 0.75) == pytest.approx(3.25)
    assert percentile([5], 0.75) == 5


def test_the_bound_is_the_third_quartile_plus_k_interquartile_ranges() -> None:
    assert outlier_bound([1, 2, 3, 4], 1.5) == pytest.approx(5.5)


def test_a_unit_whose_kv_stands_out_is_masked_though_its_batch_is_smallest() -> None:
    loads = [(1, 900), (5, 100), (6, 110), (7, 120), (8, 130)]
    assert where(Lex().place([Prompt(1)], units(*loads))) == [(1, 0)]
    assert where(IqrLex().place([Prompt(1)], units(*loads))) == [(1, 1)]


def test_a_load_at_the_bound_is_not_masked() -> None:
    loads = [(0, 0), (9, 0), (9, 0), (9, 0)]
    assert where(IqrLex(IqrLexParams(k=0)).place([Prompt(1)], units(*loads))) == [(1, 0)]


def test_with_fewer_than_four_units_there_is_no_mask() -> None:
    loads = [(1, 10**6), (5, 1), (6, 1)]
    assert where(IqrLex().place([Prompt(1)], units(*loads))) == [(1, 0)]


def test_the_least_batch_wins_and_the_least_kv_breaks_the_tie() -> None:
    loads = [(2, 10), (1, 30), (1, 20), (3, 0)]
    assert where(IqrLex().place([Prompt(1)], units(*loads))) == [(1, 2)]


def test_a_full_tie_goes_to_the_lower_unit_id() -> None:
    assert where(IqrLex().place([Prompt(1)], units((1, 5), (1, 5))[::-1])) == [(1, 0)]


def test_the_longest_request_is_placed_first() -> None:
    batch = [Prompt(1, 10), Prompt(2, 90), Prompt(3, 50)]
    assert where(IqrLex().place(batch, units((0, 0), (0, 1), (0, 2), (0, 3)))) == [
        (2, 0),
        (3, 1),
        (1, 2),
    ]


def test_batch_and_kv_are_updated_before_the_next_request() -> None:
    state = units((0, 0), (0, 0), (5, 0), (5, 0))
    batch = [Prompt(1, 30), Prompt(2, 20), Prompt(3, 10)]
    assert where(IqrLex().place(batch, state)) == [(1, 0), (2, 1), (3, 1)]
    assert [(u.num_requests, u.kv_tokens) for u in state] == [(1, 30), (2, 30), (5, 0), (5, 0)]


def test_a_unit_without_room_for_the_kv_is_no_candidate() -> None:
    state = units((0, 0), (4, 400))
    state[0].num_free_blocks = 1
    assert where(IqrLex().place([Prompt(1, 15)], state)) == [(1, 1)]


def test_a_request_that_fits_nowhere_waits_and_shorter_ones_do_not() -> None:
    batch = [Prompt(1, 500), Prompt(2, 15)]
    assert where(IqrLex().place(batch, units((0, 0), (0, 0), free=2))) == [(2, 0)]


def test_all_units_with_room_are_used_when_the_mask_leaves_none() -> None:
    state = units((1, 900), (5, 100), (6, 110), (7, 120), (8, 130), free=0)
    state[0].num_free_blocks = 100
    assert where(IqrLex().place([Prompt(1)], state)) == [(1, 0)]


def test_a_request_leaves_room_to_grow_unless_the_pool_is_too_small() -> None:
    full = Prompt(1, 20, num_growth_tokens=1)
    assert where(Lex().place([full], units((0, 0), free=2, blocks=3))) == []
    assert where(Lex().place([full], units((0, 0), free=2, blocks=2))) == [(1, 0)]


def test_a_barred_unit_is_no_candidate() -> None:
    request = Prompt(1, barred=[UnitId("w", 0)])
    assert where(Lex().place([request], units((0, 0), (9, 9)))) == [(1, 1)]


def test_min_cost_takes_the_least_marginal_pass_time() -> None:
    policy = MinCost(MinCostParams(c=1.0, d=0.01))
    assert where(policy.place([Prompt(1)], units((3, 100), (1, 350), (4, 50)))) == [(1, 0)]


def test_min_cost_masks_only_above_the_outlier_bound_and_the_alarm() -> None:
    loads = [(0, 900), (9, 100), (9, 110), (9, 120), (9, 130)]
    batch_only = MinCost(MinCostParams(c=1.0, d=0.0))
    assert where(batch_only.place([Prompt(1)], units(*loads))) == [(1, 0)]
    assert where(batch_only.place([Prompt(1)], units(*loads, blocks=95))) == [(1, 1)]


@pytest.mark.parametrize("k", [-1.0, nan, inf])
def test_a_mask_outside_its_range_is_refused(k: float) -> None:
    with pytest.raises(HeadwayError, match="k is"):
        IqrLex(IqrLexParams(k=k))
