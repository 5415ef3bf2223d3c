"""Invariants of the token pacer and of QoE, on any delivery."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.metrics import qoe
from headway.policies.pacing.protocol import Pace
from headway.policies.pacing.token_pacer import TokenPacer, TokenPacerParams

Floats = NDArray[np.float64]
GAPS = st.lists(st.floats(0, 3), min_size=1, max_size=40)
TPOTS = st.floats(0.001, 10)
BEGINNINGS = st.sampled_from([0.0, 12_345.6, 1.79e9])
ROUNDING = 1e-9


def shown_by(pace: Pace, arrivals: Floats) -> list[float]:
    """When each token is shown, by a shell that wakes whenever one comes or is due."""
    shown: list[float] = []

    def show(at: float) -> None:
        shown.extend([at] * pace.release(now=at))

    for at in arrivals.tolist():
        while pace.due_at is not None and pace.due_at < at:
            show(pace.due_at)
        pace.arrived(1, now=at)
        show(at)
    while pace.due_at is not None:
        before = len(shown)
        show(pace.due_at)
        assert len(shown) > before, "woken at the due time, nothing was due"
    return shown


@given(gaps=GAPS, tpot=TPOTS, begin=BEGINNINGS)
def test_each_token_is_shown_once_at_the_later_of_its_coming_and_its_due_time(
    gaps: list[float], tpot: float, begin: float
) -> None:
    arrivals = begin + np.cumsum(gaps)
    shown = shown_by(TokenPacer(TokenPacerParams(tpot)).pace(), arrivals)
    due = arrivals[0] + tpot * np.arange(len(arrivals))
    assert shown == np.maximum(arrivals, due).tolist()


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), min_size=1, max_size=40),
    tpot=TPOTS,
)
def test_no_token_is_lost_or_doubled_whenever_the_shell_asks(
    steps: list[tuple[int, float]], tpot: float
) -> None:
    pace, now, num_shown = TokenPacer(TokenPacerParams(tpot)).pace(), 0.0, 0
    for num_tokens, gap in steps:
        now += gap
        pace.arrived(num_tokens, now=now)
        num_shown += pace.release(now=now)
        assert pace.due_at is None or pace.due_at > now
        assert pace.slack(now=now) >= 0.0
    assert num_shown + pace.flush() == sum(n for n, _ in steps)
    assert pace.due_at is None


def read_one_by_one(instants: Floats, tpot: float, start: float | None) -> float:
    """QoE as defined: every token digested after the one before it."""
    begin = instants[0] if start is None else start
    end = begin + tpot * len(instants)
    digested_at, digested, expected = -np.inf, 0.0, 0.0
    for k, at in enumerate(instants):
        expected_at = begin + k * tpot
        digested_at = max(at, digested_at + tpot, expected_at)
        digested += max(0.0, end - digested_at)
        expected += end - expected_at
    return float(digested / expected)


STARTS = st.none() | st.floats(0, 20)


@given(gaps=GAPS, tpot=TPOTS, start=STARTS)
def test_qoe_is_the_ratio_of_the_areas(gaps: list[float], tpot: float, start: float | None) -> None:
    instants = np.cumsum(gaps)
    found = qoe(instants, tpot, start=start)
    assert found == pytest.approx(read_one_by_one(instants, tpot, start), abs=1e-6)


@given(gaps=GAPS, tpot=TPOTS, begin=BEGINNINGS, start=STARTS)
def test_qoe_lies_between_nothing_and_one(
    gaps: list[float], tpot: float, begin: float, start: float | None
) -> None:
    expected_at = None if start is None else begin + start
    assert 0.0 <= qoe(begin + np.cumsum(gaps), tpot, start=expected_at) <= 1.0


@given(num_tokens=st.integers(1, 200), tpot=TPOTS, early=st.floats(0, 1), begin=BEGINNINGS)
def test_tokens_that_are_never_late_have_a_qoe_of_one(
    num_tokens: int, tpot: float, early: float, begin: float
) -> None:
    instants = begin + early * tpot * np.arange(num_tokens, dtype=np.float64)
    assert qoe(instants, tpot) == pytest.approx(1.0, abs=1e-3 if begin > 1e9 else 1e-6)


@given(gaps=GAPS, tpot=TPOTS, start=STARTS, later=st.floats(0, 50), data=st.data())
def test_a_token_that_comes_later_never_raises_the_qoe(
    gaps: list[float], tpot: float, start: float | None, later: float, data: st.DataObject
) -> None:
    """Those after it wait for it; without a TTFT target the first one sets the clock."""
    first = 0 if start is not None else 1
    before = np.cumsum([0.0, *gaps])
    k = data.draw(st.integers(first, len(before) - 1))
    after = before.copy()
    after[k] += later
    after = np.maximum.accumulate(after)
    assert qoe(after, tpot, start=start) <= qoe(before, tpot, start=start) + ROUNDING


@given(gaps=GAPS, tpot=TPOTS, start=STARTS)
def test_pacing_never_changes_the_qoe(gaps: list[float], tpot: float, start: float | None) -> None:
    instants = np.cumsum(gaps)
    paced = np.maximum(instants, instants[0] + tpot * np.arange(len(instants)))
    assert qoe(paced, tpot, start=start) == pytest.approx(
        qoe(instants, tpot, start=start), abs=ROUNDING
    )
