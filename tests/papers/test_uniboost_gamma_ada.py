"""γ-Ada: γ is minus the slope of ln P(T > t) between the 95th and the 99th percentile."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.errors import HeadwayError
from headway.policies.batching.gamma_ada import GammaAda, GammaAdaParams, decay_rate, tail_slope
from headway.policies.batching.uniboost import UniBoost, UniBoostParams
from tests.fakes.candidates import decoding


def quantiles(n: int, rate: float = 1.0) -> NDArray[np.float64]:
    """n response times, the r-th least at P(T > t) = (n − r) / n; the last is far out."""
    return np.append(-np.log((n - np.arange(1, n)) / n), 100.0) / rate


def fed(times: NDArray[np.float64], gamma: float = 0.05, **params: float) -> GammaAda:
    ada = GammaAda(gamma, GammaAdaParams(refit_every=1_000_000, **params))  # type: ignore[arg-type]
    for seconds in times:
        ada.completed(float(seconds))
    return ada


# --- the slope --------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-3, 0.05, 2.0])
def test_the_slope_of_an_exponential_tail_is_its_rate(rate: float) -> None:
    assert tail_slope(quantiles(1000, rate)) == pytest.approx(rate)


def test_the_slope_is_the_least_squares_line_through_the_band() -> None:
    times = np.sort(np.random.default_rng(1).lognormal(3, 1, 400))
    ranks = np.arange(380, 397)  # the 95th to the 99th percentile
    line = np.polyfit(times[ranks - 1], np.log((400 - ranks) / 400), 1)
    assert tail_slope(times) == pytest.approx(-line[0])


def test_what_lies_outside_the_band_does_not_count() -> None:
    times = np.sort(np.random.default_rng(1).exponential(20, 400))
    other = times.copy()
    other[:379] = 0.0
    other[396:] = 1e6
    assert tail_slope(other) == tail_slope(times)


def test_the_order_of_completions_does_not_count() -> None:
    rng = np.random.default_rng(1)
    times = rng.exponential(20, 400)
    assert tail_slope(rng.permutation(times)) == tail_slope(times)


@pytest.mark.parametrize("n", [100, 101, 120, 199, 1000])
def test_a_hundred_completions_have_four_points_in_the_band(n: int) -> None:
    assert tail_slope(quantiles(n), 4) is not None


def test_a_sample_drawn_at_random_gives_the_rate_roughly() -> None:
    times = np.random.default_rng(2).exponential(1 / 0.05, 10_000)
    assert tail_slope(times) == pytest.approx(0.05, rel=0.15)


# --- γ ----------------------------------------------------------------------------------


def test_gamma_moves_by_the_smoothing_share_of_its_logarithm() -> None:
    ada = fed(quantiles(1000, 0.8), gamma=0.3, smoothing=0.3)
    ada.recall(0.05)  # an earlier fit's
    assert ada.refit()
    assert ada.gamma == pytest.approx(exp(0.7 * log(0.05) + 0.3 * log(0.8)))


def test_a_first_fit_is_adopted_whole() -> None:
    ada = fed(quantiles(1000, 0.8), gamma=0.05, smoothing=0.3)
    assert ada.refit()
    assert ada.gamma == pytest.approx(0.8)


def test_gamma_comes_to_the_slope_with_the_fits() -> None:
    ada = fed(quantiles(1000, 0.8))
    for _ in range(40):
        ada.refit()
    assert ada.gamma == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize(("rate", "clamped"), [(1e-7, 1e-4), (1e4, 10.0)])
def test_gamma_is_clamped_to_its_range(rate: float, clamped: float) -> None:
    ada = fed(quantiles(1000, rate), smoothing=1.0)
    assert ada.refit()
    assert ada.gamma == clamped


@pytest.mark.parametrize("gamma", [0.0, float("inf")])
def test_a_fit_may_begin_at_either_limit(gamma: float) -> None:
    ada = fed(quantiles(1000, 0.8), gamma=gamma)
    assert ada.refit()
    assert 1e-4 <= ada.gamma <= 10.0


def test_the_window_is_the_last_thousand_completions() -> None:
    rng = np.random.default_rng(3)
    old, new = rng.exponential(1.0, 700), rng.permutation(quantiles(1000, 0.05))
    ada = fed(np.concatenate([old, new]), smoothing=1.0)
    ada.refit()
    assert ada.gamma == pytest.approx(0.05)


def test_a_fit_comes_with_every_so_many_completions() -> None:
    ada = GammaAda(0.05, GammaAdaParams(refit_every=25))
    fits = [n for n, t in enumerate(quantiles(200), 1) if ada.completed(float(t))]
    assert fits == [100, 125, 150, 175, 200]


# --- degenerate fits --------------------------------------------------------------------


@pytest.mark.parametrize(
    "times",
    [quantiles(99), np.full(500, 3.0), np.zeros(500)],
    ids=["fewer than 100", "zero width", "all at once"],
)
def test_a_degenerate_fit_keeps_gamma(times: NDArray[np.float64]) -> None:
    ada = fed(times)
    assert not ada.refit()
    assert ada.gamma == 0.05


def test_fewer_than_four_points_in_the_band_are_no_fit() -> None:
    assert tail_slope(quantiles(60), 4) is None
    assert tail_slope(quantiles(2), 2) is None
    assert tail_slope(np.array([])) is None


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_response_time_that_is_none_is_left_out(seconds: float) -> None:
    ada = fed(quantiles(1000, 0.8), smoothing=1.0)
    assert not ada.completed(seconds)
    ada.refit()
    assert ada.gamma == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", 99), ("fewest", 99), ("smoothing", 0.0), ("least", 0.0), ("most", 1e-5)],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=name):
        GammaAdaParams(**{name: value})  # type: ignore[arg-type]


# --- one γ a pool -----------------------------------------------------------------------


def test_a_worker_that_nobody_has_told_fits_its_own_completions() -> None:
    policy = UniBoost(UniBoostParams(gamma=0.05))
    for number, seconds in enumerate(quantiles(200, 2.0)):
        policy.completed(decoding(number, 5), now=float(seconds))
    assert policy.gamma > 0.1
    assert policy.epoch > 0


def test_the_pool_s_gamma_ends_a_worker_s_own_fit() -> None:
    policy = UniBoost(UniBoostParams(gamma=0.05))
    policy.tune(0.3)
    for number, seconds in enumerate(quantiles(200, 2.0)):
        policy.completed(decoding(number, 5), now=float(seconds))
    assert policy.gamma == 0.3


def test_a_new_gamma_draws_all_ranks_anew() -> None:
    policy = UniBoost(UniBoostParams(gamma=0.05))
    policy.tune(0.3)
    epoch = policy.epoch
    policy.tune(0.3)
    assert policy.epoch == epoch
    policy.tune(0.4)
    assert policy.epoch == epoch + 1


# --- the fit to waits -------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_rate_of_exponential_waits_is_found_whatever_share_waits_at_all(share: float) -> None:
    rng = np.random.default_rng(4)
    waits = rng.exponential(1 / 0.05, 20_000) * (rng.random(20_000) < share)
    assert decay_rate(waits) == pytest.approx(0.05, rel=0.1)


def test_where_all_wait_alike_the_tail_is_not_steep() -> None:
    waits = np.random.default_rng(5).normal(100.0, 5.0, 1000)
    found, printed = decay_rate(waits), tail_slope(waits)
    assert found == pytest.approx(0.01, rel=0.05)
    assert printed is not None
    assert printed > 0.3


def test_where_nobody_waits_there_is_nothing_to_fit() -> None:
    assert decay_rate(np.zeros(500)) is None
    assert decay_rate(np.full(500, 0.9)) is None


def test_the_time_that_served_a_request_is_no_wait() -> None:
    policies = [UniBoost(UniBoostParams(window=100)) for _ in range(2)]
    waits = np.random.default_rng(6).exponential(5.0, 100)
    for number, wait in enumerate(waits.tolist()):
        lone = decoding(number, 9, arrival_at=0.0)
        policies[0].completed(lone, now=wait)
        policies[1].completed(replace(lone, served=1000.0), now=1000.0 + wait)
    assert policies[0].gamma == pytest.approx(policies[1].gamma)
    assert policies[0].gamma == pytest.approx(decay_rate(waits))


def test_the_printed_fit_reads_response_times_whole() -> None:
    policy = UniBoost(UniBoostParams(window=100, fit_to="responses"))
    for number, seconds in enumerate(quantiles(100, 0.2).tolist()):
        policy.completed(replace(decoding(number, 9), served=1e6), now=seconds)
    assert policy.gamma == pytest.approx(0.2)
    with pytest.raises(HeadwayError, match="fit"):
        UniBoostParams(fit_to="lengths")
