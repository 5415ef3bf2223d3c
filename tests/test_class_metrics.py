"""Figures by class: nobody's tail hides behind another's."""

from __future__ import annotations

import numpy as np
import pytest

from headway.class_metrics import Reading, ServedRequest, figures, lateness
from headway.errors import HeadwayError

CALM = Reading(0.0, 1.0)


def chat(ttft: float, **changes: float) -> ServedRequest:
    return ServedRequest(0, ttft, ttft, changes.get("ttlt", ttft + 1), CALM, changes.get("solo"))


def test_a_reader_is_late_by_the_pauses_that_outlast_the_tokens_in_hand() -> None:
    steady = np.array([0.0, 0.1, 0.2, 0.3])
    assert lateness(steady, 0.1) == pytest.approx(0.0)
    assert lateness(np.array([0.0, 0.0, 0.0, 0.3]), 0.1) == pytest.approx(0.0)
    assert lateness(np.array([0.0, 0.0, 2.0, 2.0]), 0.1) == pytest.approx(1.8)
    assert lateness(np.array([]), 0.1) == 0.0
    with pytest.raises(HeadwayError):
        lateness(steady, 0.0)


def test_each_class_has_the_figure_that_its_users_feel() -> None:
    reasoning = [ServedRequest(n, 1.0, 10.0 * n, 20.0 * n, CALM, 10.0 * n) for n in (1, 2, 3, 4)]
    unread = ServedRequest(0, 0.5, 0.5, 30.0, None, 10.0)
    row = figures([chat(0.2), *reasoning, unread])
    assert row["chat_ttft_p99"] == 0.2
    assert (row["short_ttfat_p50"], row["long_ttfat_p50"]) == (15.0, 35.0)
    assert (row["unread_ttlt_p99"], row["unread_slowdown_p99"]) == (30.0, 3.0)
    assert row["slowdown_p50"] == 2.0
    assert row["qoe_kept"] == 1.0


def test_a_class_without_requests_has_no_figure() -> None:
    assert figures([]) == {}
    row = figures([chat(0.2)])
    assert not [name for name in row if "ttfat" in name or "slowdown" in name]


def test_the_tail_says_how_much_of_it_is_length() -> None:
    short = [chat(0.1, ttlt=1.0, solo=0.5) for _ in range(200)]
    longest = chat(0.1, ttlt=100.0, solo=80.0)
    assert figures([*short, longest, longest, longest])["ttlt_p99_solo"] == pytest.approx(0.8)


def test_readers_who_were_let_down_are_counted() -> None:
    stalled = ServedRequest(0, 0.1, 0.1, 9.0, Reading(5.0, 0.5))
    row = figures([chat(0.1), stalled, ServedRequest(0, 0.1, 0.1, 9.0, None)])
    assert row["qoe_kept"] == 0.5
    assert row["lateness_p99"] == pytest.approx(4.95)


@pytest.mark.parametrize(
    ("request_", "is_in_time"),
    [
        (chat(1.0), True),
        (chat(1.1), False),
        (ServedRequest(0, 0.1, 0.1, 9.0, Reading(5.0, 0.5)), False),
        (ServedRequest(0, 0.1, 0.1, 9.0, None), False),
        (ServedRequest(100, 0.1, 7.0, 9.0, CALM), True),
        (ServedRequest(99, 0.1, 7.0, 9.0, CALM), False),
        (ServedRequest(99, 0.1, None, 9.0, CALM), False),
    ],
)
def test_who_reads_in_time_begins_in_time_and_never_runs_dry(
    request_: ServedRequest, is_in_time: bool
) -> None:
    assert request_.is_read_in_time is is_in_time
