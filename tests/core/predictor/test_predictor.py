"""The predictor's core learns bucket means and refuses nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.predictor.core import MAX_MODELS, Observed, PredictorCore
from headway.errors import HeadwayError
from headway.policies.estimation.bucket_mean import DEFAULT_BOUNDS, BucketMean


def test_a_bucket_learns_the_mean_of_its_requests() -> None:
    core = PredictorCore()
    core.handle(Observed("m", (10, 20, 500), (100, 200, 7)), now=0.0)
    table = core.table("m")
    assert table.means[0] == 150.0
    assert table.means[DEFAULT_BOUNDS.index(512)] == 7.0
    assert core.num_observed == 3


def test_a_bucket_without_samples_has_the_mean_of_all() -> None:
    core = PredictorCore()
    core.handle(Observed("m", (10,), (40,)), now=0.0)
    assert set(core.table("m").means) == {40.0}


def test_an_unknown_model_has_an_empty_table() -> None:
    assert set(PredictorCore().table("new").means) == {0.0}


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 9_999)), max_size=50))
def test_every_mean_lies_between_the_shortest_and_the_longest(pairs: list[tuple[int, int]]) -> None:
    means = BucketMean()
    for num_prompt_tokens, num_output_tokens in pairs:
        means.observe(num_prompt_tokens, num_output_tokens)
    table = means.table()
    assert sum(table.num_samples) == len(pairs)
    if pairs:
        outputs = [output for _, output in pairs]
        assert all(min(outputs) <= mean <= max(outputs) for mean in table.means)


@pytest.mark.parametrize(
    ("prompts", "outputs", "named"),
    [
        ((1, 2), (1,), "length"),
        ((2**31,), (1,), "2147483648"),
        ((1,) * 10_001, (1,) * 10_001, "10001"),
    ],
)
def test_malformed_observations_are_refused_with_the_value(
    prompts: tuple[int, ...], outputs: tuple[int, ...], named: str
) -> None:
    with pytest.raises(HeadwayError, match=named):
        Observed("m", prompts, outputs)


def test_models_are_bounded() -> None:
    core = PredictorCore()
    for number in range(MAX_MODELS):
        core.handle(Observed(f"m{number}", (1,), (1,)), now=0.0)
    with pytest.raises(HeadwayError, match=str(MAX_MODELS)):
        core.handle(Observed("one more", (1,), (1,)), now=0.0)
