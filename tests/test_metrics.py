"""What a user feels: percentiles, request times, SLOs and goodput."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.metrics import METRICS, RequestTimes, Slo, Spread, goodput, percentile

SECONDS = st.floats(0.0, 1e4)
VALUES = st.lists(SECONDS, min_size=1, max_size=60)


def times(**changed: float | None) -> RequestTimes:
    found: dict[str, float | None] = {
        "arrival_at": 1.0,
        "first_token_at": 1.2,
        "first_answer_at": 1.6,
        "last_token_at": 3.2,
        "num_output_tokens": 11,
        "longest_gap": 0.5,
    }
    return RequestTimes(**(found | changed))  # type: ignore[arg-type]  # a test's shorthand


@given(VALUES, st.floats(0.0, 1.0))
def test_a_percentile_is_numpys(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert percentile(ordered, share) == pytest.approx(float(np.quantile(ordered, share)), abs=1e-9)


@given(VALUES, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_percentiles_grow_with_the_share_and_stay_within_the_values(
    values: list[float], one: float, other: float
) -> None:
    ordered = sorted(values)
    low, high = percentile(ordered, min(one, other)), percentile(ordered, max(one, other))
    assert ordered[0] <= low <= high + 1e-9
    assert high <= ordered[-1]


def test_no_values_have_no_percentile_and_no_spread() -> None:
    assert Spread.of([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(VALUES)
def test_a_spread_does_not_depend_on_the_order(values: list[float]) -> None:
    assert Spread.of(values) == Spread.of(reversed(values))


def test_times_are_the_glossarys() -> None:
    one = times()
    found = [one.metric(name) for name in METRICS]
    assert found == pytest.approx([0.2, 0.6, 0.2, 0.5, 2.2])


def test_a_single_token_has_no_tpot_and_breaks_none() -> None:
    single = times(num_output_tokens=1, last_token_at=1.2)
    assert single.tpot is None
    assert Slo.parse("tpot=0.001").met(single)


def test_reasoning_that_never_ended_breaks_any_ttfat() -> None:
    assert not Slo.parse("ttfat=1000").met(times(first_answer_at=None))


def test_an_slo_on_tbt_binds_the_longest_gap() -> None:
    assert Slo.parse("tbt=0.5").met(times())
    assert not Slo.parse("tbt=0.49").met(times())


def test_an_slo_reads_back_as_it_was_given() -> None:
    assert str(Slo.parse(" TTFT=0.25 , tpot=0.1,")) == "ttft=0.25,tpot=0.1"
    assert Slo.parse("").met(times())


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=", "ttft=-1", "ttft=0", "ttft=nan", "speed=1", "ttft=1,ttft=2"]
)
def test_a_wrong_slo_is_refused_with_its_wrong_part(text: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        Slo.parse(text)
    assert text.rpartition(",")[2] in refused.value.message


REQUESTS = st.lists(
    st.builds(
        lambda at, wait, rest, count: RequestTimes(
            at, at + wait, at + wait, at + wait + rest, count, rest
        ),
        SECONDS,
        SECONDS,
        SECONDS,
        st.integers(1, 50),
    ),
    max_size=30,
)


@given(REQUESTS, st.floats(0.001, 100.0), st.floats(0.001, 100.0), st.floats(0.1, 1e3))
def test_goodput_is_at_most_the_throughput_and_grows_with_the_limits(
    finished: list[RequestTimes], one: float, other: float, duration: float
) -> None:
    tight, loose = (Slo({"ttft": limit}) for limit in sorted((one, other)))
    kept = [goodput(finished, slo, duration) for slo in (tight, loose, Slo({}))]
    assert kept == sorted(kept)
    assert math.isclose(kept[-1], len(finished) / duration)


def test_no_duration_has_no_goodput() -> None:
    assert goodput([times()], Slo({}), 0.0) == 0.0
