"""PASCAL's token pacer, and QoE."""

from __future__ import annotations

import numpy as np
import pytest

from headway.errors import HeadwayError
from headway.metrics import VIOLATION, qoe
from headway.policies.pacing.off import PacingOff
from headway.policies.pacing.token_pacer import TokenPacer, TokenPacerParams


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


def test_after_a_stall_what_was_missed_is_shown_at_once_and_the_rest_on_time() -> None:
    pace = TokenPacer().pace()
    pace.arrived(1, now=0.0)
    pace.release(now=0.0)
    pace.arrived(5, now=0.35)  # due at 0.1 to 0.5
    assert [pace.release(now=at) for at in (0.35, 0.4, 0.5)] == [3, 1, 1]


def test_a_token_is_shown_at_the_very_instant_it_is_due_on_a_live_clock() -> None:
    pace = TokenPacer(TokenPacerParams(tpot=0.1)).pace()
    pace.arrived(1000, now=1.79e9 + 0.3)
    num_shown = pace.release(now=1.79e9 + 0.3)
    for _ in range(999):
        due_at = pace.due_at
        assert due_at is not None
        assert pace.release(now=due_at) == 1
        num_shown += 1
    assert (num_shown, pace.due_at) == (1000, None)


def test_a_pace_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(HeadwayError, match=r"0\.001"):
        TokenPacerParams(tpot=0.0)


# --- QoE ------------------------------------------------------------------------------


def test_an_answer_on_time_has_a_qoe_of_one() -> None:
    assert qoe(np.array([1.0, 1.1, 1.2]), 0.1) == pytest.approx(1.0)
    assert qoe(np.array([1.0, 1.0, 1.0]), 0.1) == pytest.approx(1.0)  # sooner is not better


def test_a_stall_in_the_middle_costs_what_the_reader_misses() -> None:
    """Digested at 0, 1 and 2.5 where 2 was expected; the areas end at 3."""
    found = qoe(np.array([0.0, 1.0, 2.5]), 1.0)
    assert found == pytest.approx((3.0 + 2.0 + 0.5) / (3.0 + 2.0 + 1.0))


def test_a_stall_while_tokens_are_in_hand_costs_nothing() -> None:
    assert qoe(np.array([0.0, 0.0, 0.0, 3.0]), 1.0) == pytest.approx(1.0)


def test_after_a_stall_the_reader_goes_on_at_their_pace_and_stays_behind() -> None:
    assert qoe(np.array([0.0, 2.0, 2.0]), 1.0) == pytest.approx((3.0 + 1.0 + 0.0) / 6.0)


def test_a_last_token_that_comes_still_later_does_not_make_the_others_look_better() -> None:
    late = np.array([0.0, 5.0, 5.1, 5.2, 5.3])
    later = np.array([0.0, 5.0, 5.1, 5.2, 50.0])
    assert qoe(later, 0.1) <= qoe(late, 0.1)


def test_a_reader_is_let_down_below_95_percent() -> None:
    assert VIOLATION == 0.95


def test_a_late_first_token_counts_where_a_target_for_it_is_given() -> None:
    instants = np.array([2.0, 2.1])
    assert qoe(instants, 0.1) == pytest.approx(1.0)
    assert qoe(instants, 0.1, start=0.5) < 0.2


def test_no_answer_has_a_qoe_of_zero() -> None:
    assert qoe(np.empty(0), 0.1) == 0.0
