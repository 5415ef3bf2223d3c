"""Rates over time: arrivals follow the table, whatever process draws them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.workload.rates import RateCurve, read_curve

LINES = ["at,rate", "0,10", "100,0", "200,40", "300,0"]


def at(curve: RateCurve, rate: float = 0.0, seed: int = 1) -> list[float]:
    return [row.arrival_at for row in curve.replay(rate, random.Random(seed))]


def test_as_many_arrivals_come_in_a_stretch_as_its_rate_says() -> None:
    found = at(read_curve(LINES, "r"))
    assert sum(a < 100 for a in found) == pytest.approx(1000, abs=100)
    assert not any(100 <= a < 200 for a in found)
    assert sum(200 <= a < 300 for a in found) == pytest.approx(4000, abs=200)
    assert max(found) < 300


@pytest.mark.parametrize("process", ["poisson", "gamma", "constant"])
def test_any_process_follows_the_rates(process: str) -> None:
    curve = replace(read_curve(LINES, "r"), process=process, burstiness=0.5)
    assert len(at(curve)) == pytest.approx(5000, rel=0.1)


def test_a_mean_rate_scales_all_rates() -> None:
    curve = read_curve(LINES, "r")
    assert curve.mean_rate == pytest.approx(12.5)
    found = at(curve, 1.25)
    assert len(found) == pytest.approx(500, rel=0.2)
    assert max(found) < 300


def test_a_column_a_class_says_which_class_comes_when() -> None:
    curve = read_curve(["at,chat,batch", "0,5,0", "100,0,5"], "r")
    rows = list(curve.replay(0.0, random.Random(1)))
    assert {row.kind for row in rows if row.arrival_at < 100} == {"chat"}
    assert {row.kind for row in rows if row.arrival_at >= 100} == {"batch"}


def test_a_window_begins_at_0_and_keeps_its_rates() -> None:
    curve = read_curve(["at,rate", "3600,1", "3700,9", "3800,1"], "r").between(150, 220)
    assert curve.mean_rate == pytest.approx((50 * 9 + 20) / 70)
    found = at(curve)
    assert 0 <= min(found) < max(found) < 70
    assert sum(a < 50 for a in found) == pytest.approx(450, rel=0.2)


def test_a_window_without_requests_is_refused() -> None:
    for window in ((100, 200), (9000, 9001)):
        with pytest.raises(HeadwayError, match="a time with requests"):
            read_curve(LINES, "r").between(*window)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["rate", "1", "2"], "with at, and either rate"),
        (["at", "1"], "with at, and either rate"),
        (["at,rate,chat", "0,1,1"], "with at, and either rate"),
        (["at,rate", "0,1"], "has 1 rows"),
        (["at,rate", "0,1", "0,1"], "line 3: at is '0'; it must be later"),
        (["at,rate", "0,1", "9,-1"], "line 3: rate is '-1'"),
        (["at,rate", "0,0", "9,0"], "no rate over 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(lines: list[str], says: str) -> None:
    with pytest.raises(HeadwayError, match=says):
        read_curve(lines, "rates.csv")


@given(
    rates=st.lists(st.floats(0, 5), min_size=2, max_size=6),
    start=st.floats(0, 50),
    seed=st.integers(0, 99),
)
def test_arrivals_are_in_order_and_only_where_the_rate_is_over_0(
    rates: list[float], start: float, seed: int
) -> None:
    if not any(rates):
        return
    curve = RateCurve([start + 10.0 * n for n in range(len(rates) + 1)], [[r] for r in rates], [""])
    found = [row.arrival_at for row in islice(curve.replay(0.0, random.Random(seed)), 500)]
    assert found == sorted(found)
    for arrival_at in found:
        assert 0 <= arrival_at <= 10 * len(rates)
        place = min(int(arrival_at / 10), len(rates) - 1)
        assert rates[place] > 0 or arrival_at == pytest.approx(10 * place)
