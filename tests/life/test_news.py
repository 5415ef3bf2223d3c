"""A worker's news arrive late, and keep their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.life.moments import Moment, MomentKind, add_news, way_to
from headway.life.parts import PartKind, parts_of

M, P = MomentKind, PartKind


def told(*moments: Moment) -> list[Moment]:
    """Return the moments in order of time, told in the order given."""
    known: list[Moment] = [Moment(10, M.SENT)]
    for moment in moments:
        add_news(known, moment)
    return sorted(known, key=lambda moment: moment.at)


def test_a_handoff_whose_first_message_is_slow_is_no_move() -> None:
    known = told(
        Moment(40, M.ADMITTED, "a", 100),
        Moment(90, M.COMPUTED, "a", 1),
        Moment(90, M.PREFILLED, "a"),
        Moment(70, M.DEPARTS, "a", cause=way_to("b")),  # its own message took less time
        Moment(95, M.RUNS_ON, "b"),
    )
    assert [(p.kind, p.end - p.begin, p.worker_id) for p in parts_of(known, 200)][2:] == [
        (P.PREFILL, 30, "a"),
        (P.TRANSFER, 25, "a"),
        (P.DECODE, 105, "b"),
    ]


PREFILLED = (
    Moment(40, M.ADMITTED, "a", 100),
    Moment(90, M.COMPUTED, "a", 1),
    Moment(90, M.PREFILLED, "a"),
)
DEPARTS = Moment(160, M.DEPARTS, "a", cause=way_to("b"))  # its message was slow
RUNS = (Moment(80, M.ARRIVING, "b"), Moment(80, M.RUNS_ON, "b"))


@pytest.mark.parametrize("slow", [(*PREFILLED, DEPARTS, *RUNS), (*RUNS, *PREFILLED, DEPARTS)])
def test_a_request_has_left_before_another_worker_has_its_kv(slow: tuple[Moment, ...]) -> None:
    assert [(p.kind, p.begin, p.worker_id) for p in parts_of(told(*slow), 200)][2:] == [
        (P.PREFILL, 40, "a"),
        (P.TRANSFER, 79, "a"),
        (P.DECODE, 80, "b"),
    ]


def test_a_second_way_between_two_workers_is_not_taken_for_the_first() -> None:
    first = (*PREFILLED, Moment(95, M.DEPARTS, "a", cause=way_to("b")))
    there = (Moment(96, M.ARRIVING, "b"), Moment(99, M.RUNS_ON, "b"))
    back = (Moment(110, M.ARRIVING, "a"), Moment(120, M.DEPARTS, "b", cause=way_to("a")))
    again = (Moment(130, M.RUNS_ON, "a"), Moment(170, M.DEPARTS, "a", cause=way_to("b")))
    known = told(*first, *there, *back, *again, Moment(175, M.RUNS_ON, "b"))
    assert [(p.kind, p.begin, p.worker_id) for p in parts_of(known, 200)][-5:] == [
        (P.DECODE, 99, "b"),
        (P.MOVE, 120, "b"),
        (P.DECODE, 130, "a"),
        (P.MOVE, 170, "a"),
        (P.DECODE, 175, "b"),
    ]


def test_what_the_gateway_saw_itself_and_other_workers_news_stay() -> None:
    known = [Moment(50, M.PLACED, "a"), Moment(60, M.ARRIVING, "b"), Moment(70, M.QUEUED, "a")]
    add_news(known, Moment(30, M.ADMITTED, "a", 7))
    assert [moment.at for moment in known] == [50, 60, 30, 30]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 30))))
def test_news_keep_their_order_and_are_never_early_and_no_later_than_told(
    steps: list[tuple[str, int, int]],
) -> None:
    """``steps``: worker, time since the step before, time that its message took."""
    known: list[Moment] = []
    true: dict[int, int] = {}
    now = 0
    for number, (worker_id, pause, way) in enumerate(steps):
        now += pause
        true[number] = now
        add_news(known, Moment(now + way, M.QUEUED, worker_id, number))
    assert [moment.amount for moment in known] == list(true)
    for worker_id in "ab":
        mine = [moment.at for moment in known if moment.worker_id == worker_id]
        assert mine == sorted(mine)
    for moment in known:
        way = steps[moment.amount][2]
        assert true[moment.amount] <= moment.at <= true[moment.amount] + way
