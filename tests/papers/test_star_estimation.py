"""STAR: how many tokens a request still has to generate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import inf

import pytest

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.estimation import Estimation
from headway.policies.estimation.noisy_oracle import NoisyOracle, NoisyOracleParams
from headway.request import StreamKey


@dataclass(frozen=True)
class Running:
    num_output_tokens: int = 0
    prediction: float | None = None
    num_tokens_since_prediction: int = 0
    true_remaining: int | None = None
    num_prompt_tokens: int = 100
    number: int = 1

    @property
    def key(self) -> StreamKey:
        return StreamKey("g", self.number)


def make(name: str, **params: object) -> Estimation:
    policy: Estimation = registry.make("estimation", name, **params)
    return policy


def test_a_prediction_counts_down_by_one_a_token() -> None:
    running = Running(prediction=500.0, num_tokens_since_prediction=7)
    assert make("countdown").remaining(running) == 493.0


def test_an_estimate_never_goes_below_one() -> None:
    running = Running(prediction=5.0, num_tokens_since_prediction=50)
    assert make("countdown").remaining(running) == 1.0


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -3.0])
def test_what_is_no_length_is_no_estimate(bad: float | None) -> None:
    assert make("countdown").remaining(Running(prediction=bad)) is None


def test_predictions_come_every_twenty_steps() -> None:
    assert make("countdown").interval == 20
    assert make("countdown", interval=100).interval == 100


@pytest.mark.parametrize(("num_bins", "middle"), [(2, 4096.0), (4, 2048.0), (6, 1024.0)])
def test_bins_tell_the_middle_of_the_papers_classes(num_bins: int, middle: float) -> None:
    assert make("bins", num_bins=num_bins).remaining(Running(prediction=100.0)) == middle


def test_the_last_bin_holds_all_that_is_longer() -> None:
    assert make("bins", num_bins=2).remaining(Running(prediction=1e6)) == 20 * 1024


def test_other_numbers_of_bins_are_refused() -> None:
    with pytest.raises(HeadwayError, match="2, 4 or 6"):
        make("bins", num_bins=3)


def test_the_oracle_tells_the_truth_where_there_is_one() -> None:
    assert make("oracle").remaining(Running(true_remaining=77)) == 77.0
    assert make("oracle").remaining(Running()) is None


def test_the_bucket_mean_knows_nothing_before_a_request_has_finished() -> None:
    policy = registry.make("estimation", "bucket-mean")
    assert policy.remaining(Running()) is None
    policy.observe(100, 40)
    assert policy.remaining(Running(num_output_tokens=10)) == 30.0


@pytest.mark.parametrize("error", [0.1, 0.5, 1.0])
def test_the_noisy_oracle_errs_as_much_as_it_is_told_to(error: float) -> None:
    policy = NoisyOracle(NoisyOracleParams(error=error))
    found = [
        policy.remaining(Running(true_remaining=100_000, number=number)) for number in range(4000)
    ]
    errors = [abs(value / 100_000 - 1) for value in found if value is not None]
    assert statistics.fmean(errors) == pytest.approx(error, rel=0.1)


def test_the_noise_is_the_same_for_the_same_seed_and_counts_down_between_predictions() -> None:
    policy = NoisyOracle(NoisyOracleParams(error=0.5))
    first = policy.remaining(Running(num_output_tokens=40, true_remaining=1000))
    later = policy.remaining(Running(num_output_tokens=45, true_remaining=995))
    assert first is not None
    assert later == first - 5
    again = NoisyOracle(NoisyOracleParams(error=0.5))
    assert again.remaining(Running(num_output_tokens=40, true_remaining=1000)) == first


def test_the_error_may_fall_as_more_of_the_answer_is_there() -> None:
    def mean_error(num_output_tokens: int, halved_by: float) -> float:
        policy = NoisyOracle(NoisyOracleParams(error=0.5, halved_by=halved_by))
        running = [
            Running(num_output_tokens, true_remaining=10_000, number=number)
            for number in range(2000)
        ]
        found = [policy.remaining(each) for each in running]
        return statistics.fmean(abs((each or 0.0) / 10_000 - 1) for each in found)

    assert mean_error(8000, inf) == pytest.approx(mean_error(0, inf), rel=0.1)
    assert mean_error(0, 4000.0) == pytest.approx(0.5, rel=0.1)
    assert mean_error(8000, 4000.0) < 0.2
    with pytest.raises(HeadwayError, match="halved_by"):
        NoisyOracleParams(halved_by=0.0)
