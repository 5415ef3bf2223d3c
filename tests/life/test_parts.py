"""Moments become parts: no gap, no overlap, and each wait under its own name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.life.form import packed, unpacked
from headway.life.moments import Moment, MomentKind
from headway.life.parts import PartKind, parts_of
from headway.life.record import OPEN, Crowd, Instants, LifeRecord, TokenTally
from tests.fakes.lives import conserves

M, P = MomentKind, PartKind
PLAIN = (
    Moment(10, M.SENT),
    Moment(40, M.PLACED, "a"),
    Moment(41, M.QUEUED, "a"),
    Moment(60, M.ADMITTED, "a", 100),
    Moment(90, M.COMPUTED, "a", 2),
    Moment(91, M.FIRST_TOKEN, "a"),
)


def kinds(moments: tuple[Moment, ...], end: int = 1000) -> list[tuple[PartKind, int, str]]:
    return [(p.kind, p.end - p.begin, p.worker_id) for p in parts_of(moments, end)]


def test_a_plain_life() -> None:
    assert kinds(PLAIN) == [
        (P.SUBMISSION, 10, ""),
        (P.WINDOW, 30, ""),
        (P.QUEUE, 20, "a"),
        (P.PREFILL, 30, "a"),
        (P.DECODE, 910, "a"),
    ]


def test_what_went_by_before_and_after_the_scheduler_s_choice_is_the_way_of_messages() -> None:
    """182 ms between a decision and its delivery were laid to a wait for workers that were idle."""
    late = (Moment(10, M.SENT), Moment(41, M.QUEUED, "a"), Moment(42, M.ADMITTED, "a", 9))
    prefilled = (Moment(90, M.COMPUTED, "a"), Moment(90, M.PREFILLED, "a"))
    told = (
        Moment(50, M.CHOSEN, "a", 12),
        Moment(91, M.CHOSEN, "a", 3),
        Moment(99, M.CHOSEN, "b", 2),
    )
    moved = (Moment(290, M.DEPARTS, "a", cause="to b"), Moment(300, M.RUNS_ON, "b"))
    moments = tuple(sorted((*late, *prefilled, *told, *moved), key=lambda moment: moment.at))
    assert kinds(moments) == [
        (P.SUBMISSION, 10, ""),
        (P.WINDOW, 12, ""),
        (P.WAY, 19, ""),
        (P.QUEUE, 1, "a"),
        (P.PREFILL, 48, "a"),
        (P.PLACEMENT, 2, "a"),
        (P.WAY, 198, "a"),
        (P.TRANSFER, 10, "a"),
        (P.DECODE, 700, "b"),
    ]


@pytest.mark.parametrize("choice", [Moment(50, M.CHOSEN, "b", 3), Moment(50, M.CHOSEN, "a", 31)])
def test_a_choice_of_another_worker_or_after_a_longer_wait_splits_no_window(choice: Moment) -> None:
    moments = tuple(sorted((*PLAIN, choice), key=lambda moment: moment.at))
    assert kinds(moments) == kinds(PLAIN)


def test_what_a_worker_has_said_is_not_undone_by_the_scheduler_s_later_word() -> None:
    late = (Moment(10, M.SENT), Moment(41, M.QUEUED, "a"), Moment(42, M.ADMITTED, "a", 9))
    moments = (*late, Moment(50, M.PLACED, "a"), Moment(90, M.COMPUTED, "a"))
    assert [kind for kind, _, _ in kinds(moments)] == [
        P.SUBMISSION,
        P.WINDOW,
        P.QUEUE,
        P.PREFILL,
        P.DECODE,
    ]


def test_a_worker_that_says_nothing_is_known_by_its_tokens() -> None:
    moments = (Moment(10, M.SENT), Moment(40, M.PLACED, "a"), Moment(91, M.FIRST_TOKEN, "a"))
    assert kinds(moments)[-2:] == [(P.QUEUE, 51, "a"), (P.DECODE, 909, "a")]


def test_a_preemption_is_a_wait_and_a_recompute() -> None:
    moments = (*PLAIN, Moment(200, M.PREEMPTED, "a", 150), Moment(300, M.ADMITTED, "a", 151))
    assert kinds((*moments, Moment(350, M.COMPUTED, "a", 1)))[-4:] == [
        (P.DECODE, 110, "a"),
        (P.PREEMPTED, 100, "a"),
        (P.RECOMPUTE, 50, "a"),
        (P.DECODE, 650, "a"),
    ]


def test_kv_in_host_memory_comes_back_in_a_swap() -> None:
    moments = (*PLAIN, Moment(200, M.SWAPS_OUT, "a", 150), Moment(210, M.SWAPPED, "a", 1))
    back = (Moment(300, M.SWAPS_IN, "a"), Moment(320, M.SWAPPED, "a", 1))
    assert kinds((*moments, *back))[-3:] == [
        (P.PREEMPTED, 100, "a"),
        (P.SWAP, 20, "a"),
        (P.DECODE, 680, "a"),
    ]


def test_a_handoff_is_a_placement_and_a_transfer() -> None:
    sent = (*PLAIN, Moment(92, M.PREFILLED, "a"), Moment(100, M.ARRIVING, "b"))
    moments = (*sent, Moment(130, M.RUNS_ON, "b"), Moment(150, M.CONTINUES, "b"))
    assert kinds(moments)[-3:] == [
        (P.PLACEMENT, 8, "a"),
        (P.TRANSFER, 30, "a"),
        (P.DECODE, 870, "b"),
    ]


def test_a_move_stops_a_request_only_for_its_remainder() -> None:
    sent = (*PLAIN, Moment(200, M.ARRIVING, "b"), Moment(260, M.LEFT, "a"))
    moments = (*sent, Moment(261, M.DEPARTS, "a"), Moment(290, M.RUNS_ON, "b"))
    assert kinds(moments)[-3:] == [(P.DECODE, 170, "a"), (P.MOVE, 30, "a"), (P.DECODE, 710, "b")]


def test_a_lost_attempt_is_a_retry_and_begins_again() -> None:
    lost = (*PLAIN, Moment(200, M.LOST, "a"), Moment(250, M.SENT), Moment(270, M.PLACED, "b"))
    moments = (*lost, Moment(280, M.ADMITTED, "b", 110), Moment(300, M.COMPUTED, "b"))
    assert kinds(moments)[-5:] == [
        (P.RETRY, 50, ""),
        (P.WINDOW, 20, ""),
        (P.QUEUE, 10, "b"),
        (P.RECOMPUTE, 20, "b"),
        (P.DECODE, 700, "b"),
    ]


MOMENTS = st.lists(
    st.builds(
        Moment,
        st.integers(-10, 200),
        st.sampled_from(MomentKind),
        st.sampled_from(["", "a", "b"]),
        st.integers(0, 3),
        st.text(max_size=3),
    ),
    max_size=40,
)


@given(MOMENTS, st.integers(0, 150))
def test_whatever_is_told_the_parts_sum_exactly_to_the_whole(told: list[Moment], end: int) -> None:
    moments = tuple(sorted(told, key=lambda moment: moment.at))
    life = LifeRecord(
        "r", "g", "m", 1.5, OPEN, "", "", "", True, TokenTally(1), Crowd(), Instants(end=end),
        moments, parts_of(moments, end),
    )  # fmt: skip
    conserves(life)


def test_other_json_is_refused() -> None:
    life = LifeRecord(
        "r", "g", "m", 1.5, OPEN, "", "", "", True, TokenTally(1), Crowd(), Instants(), (), ()
    )
    with pytest.raises(HeadwayError, match="no life"):
        unpacked(packed(life) | {"parts": [{"kind": "sleep"}]})
    with pytest.raises(HeadwayError, match="no life"):
        unpacked({})
