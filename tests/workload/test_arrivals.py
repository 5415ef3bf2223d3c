"""Arrival processes keep their rate, their shape and their seed."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.arrivals import PROCESSES, Bursts, arrivals

process_names = st.sampled_from(PROCESSES)
rates = st.floats(0.01, 1000.0)


@given(process_names, rates, st.integers(0, 200), st.integers(0, 2**32))
def test_a_seed_gives_the_same_ascending_instants_again(
    process: str, rate: float, count: int, seed: int
) -> None:
    one, again = (arrivals(process, rate, random.Random(seed), num_requests=count) for _ in "12")
    assert one == again == sorted(one)
    assert len(one) == count
    assert all(0.0 <= at < math.inf for at in one)


@given(process_names, rates, st.floats(0.01, 5.0))
def test_nothing_arrives_after_the_duration(process: str, rate: float, duration: float) -> None:
    found = arrivals(process, rate, random.Random(1), duration=duration)
    assert all(at <= duration for at in found)


@given(process_names, rates, st.floats(0.01, 5.0), st.integers(0, 20))
def test_a_count_and_a_duration_both_bind(
    process: str, rate: float, duration: float, count: int
) -> None:
    by_time = arrivals(process, rate, random.Random(2), duration=duration)
    both = arrivals(process, rate, random.Random(2), duration=duration, num_requests=count)
    assert both == by_time[:count]


@pytest.mark.parametrize("process", PROCESSES)
def test_the_mean_rate_is_the_one_asked_for(process: str) -> None:
    found = arrivals(process, 8.0, random.Random(3), burstiness=0.5, num_requests=20_000)
    assert len(found) / found[-1] == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_the_gamma_shape_sets_the_gaps_variation(shape: float) -> None:
    found = arrivals("gamma", 2.0, random.Random(4), burstiness=shape, num_requests=40_000)
    gaps = [after - at for at, after in itertools.pairwise(found)]
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(shape**-0.5, rel=0.05)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert arrivals("constant", 4.0, random.Random(5), duration=1.0) == [0.25, 0.5, 0.75, 1.0]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrivals("poisson", math.inf, random.Random(6), num_requests=3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("process", "rate", "burstiness"),
    [
        ("poisson", 0.0, 1.0),
        ("poisson", -1.0, 1.0),
        ("poisson", math.nan, 1.0),
        ("uniform", 1.0, 1.0),
        ("gamma", 1.0, 0.0),
        ("gamma", 1.0, math.inf),
    ],
)
def test_what_has_no_meaning_is_refused(process: str, rate: float, burstiness: float) -> None:
    with pytest.raises(HeadwayError):
        arrivals(process, rate, random.Random(7), burstiness=burstiness, num_requests=1)


@pytest.mark.parametrize(("rate", "duration"), [(1.0, None), (math.inf, 1.0)])
def test_arrivals_without_an_end_are_refused(rate: float, duration: float | None) -> None:
    with pytest.raises(HeadwayError, match="num_requests"):
        arrivals("poisson", rate, random.Random(8), duration=duration)


def test_bursts_keep_the_mean_rate_and_come_in_clumps() -> None:
    rng = random.Random(1)
    bursts = Bursts(factor=5.0, length=3.0, share=0.3)
    instants = list(itertools.accumulate(itertools.islice(bursts.gaps(20.0, rng), 300_000)))
    assert len(instants) / instants[-1] == pytest.approx(20.0, rel=0.06)
    counts = [0] * (int(instants[-1]) + 1)
    for at in instants:
        counts[int(at)] += 1
    mean = statistics.fmean(counts)
    assert statistics.pvariance(counts) / mean > 3.0  # Poisson has 1


def test_without_a_factor_bursts_are_poisson() -> None:
    gaps_found = list(itertools.islice(Bursts(factor=1.0).gaps(2.0, random.Random(3)), 20_000))
    assert statistics.fmean(gaps_found) == pytest.approx(0.5, rel=0.03)
    assert statistics.pstdev(gaps_found) == pytest.approx(0.5, rel=0.03)


def test_a_wave_moves_the_rate_and_keeps_its_mean() -> None:
    bursts = Bursts(factor=1.0, wave=0.8, wave_period=100.0)
    found = list(itertools.accumulate(itertools.islice(bursts.gaps(5.0, random.Random(4)), 50_000)))
    assert len(found) / found[-1] == pytest.approx(5.0, rel=0.03)
    rising = sum(at % 100.0 < 50.0 for at in found) / len(found)
    assert rising == pytest.approx(0.5 + 0.8 / math.pi, abs=0.01)


@pytest.mark.parametrize(
    ("name", "value"),
    [("factor", 0.5), ("length", 0.0), ("share", 1.0), ("wave", 1.5), ("wave_period", 0.0)],
)
def test_bursts_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(HeadwayError, match=f"burst_{name} is"):
        Bursts(**{name: value})
