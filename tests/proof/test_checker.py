"""The checker finds every broken promise, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from proof.checker import (
    Asked,
    Checker,
    Ended,
    Failed,
    HistoryFault,
    Left,
    Read,
    Record,
    to_lines,
)

ASKED = Asked("r", 1.0, (5, 6, 7), deadline_at=10.0)


def check(records: Iterable[Record], *, ended_at: float) -> Checker:
    checker = Checker(bound=1.0)
    for record in records:
        checker.take(record)
    checker.finish(ended_at)
    return checker


def faults(*records: Record, ended_at: float = 5.0) -> list[HistoryFault]:
    return [each.fault for each in check([ASKED, *records], ended_at=ended_at).violations]


def test_a_whole_answer_keeps_every_promise() -> None:
    checker = check(
        [ASKED, Read("r", 2.0, (5,), 0), Read("r", 3.0, (6, 7), 1), Ended("r", 3.0, "length")],
        ended_at=5.0,
    )
    assert checker.violations == []
    assert checker.summary.num_tokens == 3
    assert checker.summary.ends == {"length": 1}


def test_text_is_compared_by_its_characters() -> None:
    asked = Asked("t", 1.0, "abc")
    history: list[Record] = [asked, Read("t", 2.0, "ab"), Read("t", 2.5, "x")]
    (violation,) = check([*history, Left("t", 3.0)], ended_at=4.0).violations
    assert violation.fault is HistoryFault.WRONG
    assert "token 2 is 'x'; undisturbed it is 'c'" in str(violation)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        ([Read("r", 2.0, (5, 5)), Left("r", 3.0)], HistoryFault.WRONG),
        ([Read("r", 2.0, (5,), 0), Read("r", 2.0, (5,), 0), Left("r", 3.0)], HistoryFault.DOUBLED),
        ([Read("r", 2.0, (6,), 1), Left("r", 3.0)], HistoryFault.LOST),
        ([Read("r", 2.0, (5, 6, 7, 8)), Ended("r", 3.0)], HistoryFault.DOUBLED),
        ([Read("r", 2.0, (5, 6)), Ended("r", 3.0)], HistoryFault.LOST),
        ([Failed("r", 2.0, "UNAVAILABLE"), Read("r", 3.0, (5,))], HistoryFault.AFTER_END),
        (
            [Failed("r", 2.0, "UNAVAILABLE"), Failed("r", 2.0, "UNAVAILABLE")],
            HistoryFault.AFTER_END,
        ),
        ([Failed("r", 2.0, "INTERNAL", "a bug")], HistoryFault.BAD_ERROR),
        ([Failed("r", 11.5, "UNAVAILABLE")], HistoryFault.LATE),
        ([Read("x", 2.0, (5,)), Left("r", 3.0)], HistoryFault.UNASKED),
        ([Read("r", 2.0, (5,))], HistoryFault.OPEN),
    ],
)
def test_a_broken_promise_is_named(records: list[Record], fault: HistoryFault) -> None:
    assert faults(*records) == [fault]


def test_nothing_is_promised_to_a_client_that_has_left() -> None:
    assert faults(Left("r", 2.0), Read("r", 3.0, (9,)), Failed("r", 3.0, "INTERNAL")) == []


def test_a_client_may_be_told_why_there_is_no_answer() -> None:
    assert faults(Read("r", 2.0, (5,)), Failed("r", 10.5, "DEADLINE_EXCEEDED")) == []


def test_what_is_open_can_be_asked() -> None:
    checker = Checker()
    for record in (ASKED, Read("r", 2.0, (5, 6))):
        checker.take(record)
    assert checker.open_ids == ["r"]


def test_a_history_can_be_written_down() -> None:
    history: list[Record] = [
        Asked("t", 1.0, "abc", 9.0),
        Read("t", 2.0, "ab", 0),
        Failed("t", 3.0, "UNAVAILABLE"),
    ]
    lines = [json.loads(line) for line in to_lines(history)]
    assert [line["kind"] for line in lines] == ["asked", "read", "failed"]
    assert lines[1] == {"kind": "read", "request_id": "t", "at": 2.0, "tokens": "ab", "index": 0}
