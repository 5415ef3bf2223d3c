"""PASCAL's token pacer, and QoE."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.pacing.off import PacingOff
from headway.policies.pacing.token_pacer import TokenPacer
from headway.qoe import qoe

GAPS = st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=40)


def test_a_burst_is_shown_at_the_pace_of_a_reader() -> None:
    pace = TokenPacer().pace()
    pace.arrived(5, now=10.0)
    assert [pace.release(now=10.0 + 0.1 * k) for k in range(6)] == [1, 1, 1, 1, 1, 0]


def test_a_token_that_is_late_is_shown_at_once() -> None:
    pace = TokenPacer().pace()
    pace.arrived(1, now=0.0)
    assert pace.release(now=0.0) == 1
    pace.arrived(3, now=1.0)  # due at 0.1, 0.2 and 0.3
    assert pace.release(now=1.0) == 3


def test_the_next_token_is_due_a_pace_after_the_last() -> None:
    pace = TokenPacer().pace()
    assert pace.due_at is None
    pace.arrived(3, now=2.0)
    pace.release(now=2.0)
    assert pace.due_at == pytest.approx(2.1)


def test_slack_is_the_time_until_nothing_is_left_to_read() -> None:
    pace = TokenPacer().pace()
    assert pace.slack(now=0.0) == 0.0
    pace.arrived(10, now=0.0)
    pace.release(now=0.0)
    assert pace.slack(now=0.4) == pytest.approx(0.6)
    assert pace.slack(now=5.0) == 0.0


def test_the_end_of_the_stream_shows_all_that_is_in_hand() -> None:
    pace = TokenPacer().pace()
    pace.arrived(5, now=0.0)
    pace.release(now=0.0)
    assert pace.flush() == 4
    assert pace.due_at is None


def test_without_pacing_tokens_go_as_they_come() -> None:
    pace = PacingOff().pace()
    pace.arrived(5, now=0.0)
    assert pace.release(now=0.0) == 5
    assert pace.slack(now=0.0) == 0.0


@given(gaps=GAPS)
def test_no_token_is_held_beyond_its_due_time_or_shown_before_it(gaps: list[float]) -> None:
    arrivals = np.cumsum(gaps)
    pace = TokenPacer().pace()
    shown: list[float] = []
    for at in arrivals:
        while pace.due_at is not None and pace.due_at < at:
            due_at = pace.due_at
            shown += [due_at] * pace.release(now=due_at)
        pace.arrived(1, now=float(at))
        shown += [float(at)] * pace.release(now=float(at))
    while pace.due_at is not None:
        due_at = pace.due_at
        shown += [due_at] * pace.release(now=due_at)
    due = arrivals[0] + 0.1 * np.arange(len(arrivals))
    np.testing.assert_allclose(shown, np.maximum(due, arrivals), atol=1e-6)


# --- QoE ------------------------------------------------------------------------------


def test_an_answer_on_time_has_a_qoe_of_one() -> None:
    assert qoe(np.array([1.0, 1.1, 1.2]), 0.1) == pytest.approx(1.0)
    assert qoe(np.array([1.0, 1.0, 1.0]), 0.1) == pytest.approx(1.0)  # sooner is not better


def test_a_stall_in_the_middle_costs_what_the_reader_misses() -> None:
    """Digested at 0, 1 and 3.5 where 2 was expected; the areas end at 4.5."""
    found = qoe(np.array([0.0, 1.0, 3.5]), 1.0)
    assert found == pytest.approx((4.5 + 3.5 + 1.0) / (4.5 + 3.5 + 2.5))


def test_a_late_first_token_counts_where_a_target_for_it_is_given() -> None:
    instants = np.array([2.0, 2.1])
    assert qoe(instants, 0.1) == pytest.approx(1.0)
    assert qoe(instants, 0.1, start=0.5) < 0.2


def test_no_answer_has_a_qoe_of_zero() -> None:
    assert qoe(np.empty(0), 0.1) == 0.0


@given(gaps=GAPS)
def test_qoe_lies_between_nothing_and_one_and_the_pacer_does_not_change_it(
    gaps: list[float],
) -> None:
    arrivals = np.cumsum(gaps)
    found = qoe(arrivals, 0.1)
    assert 0.0 < found <= 1.0 + 1e-9
    paced = np.maximum(arrivals, arrivals[0] + 0.1 * np.arange(len(arrivals)))
    assert qoe(paced, 0.1) == pytest.approx(found)
