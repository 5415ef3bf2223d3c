"""Sessions are read line by line; what nobody could run is refused with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.workload.sessions import Session, SessionTurn, read_sessions


def line(number: int, at: float | None = 0.0, **turn: Any) -> str:
    turns = [{"pause": 0.5, "input_length": 9, "output_length": 2, **turn}]
    return json.dumps({"session": number, "kind": "agent", "at": at, "turns": turns})


def test_a_session_has_its_turns_ids_and_children() -> None:
    found = read_sessions([line(0, hash_ids=[4, 5], children=[7]), line(7, None)], "f")
    turn = SessionTurn(0.5, 9, 2, (4, 5), (7,))
    child = Session(7, "agent", None, (SessionTurn(0.5, 9, 2),))
    assert found == [Session(0, "agent", 0.0, (turn,)), child]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "f is empty"),
        (["[]"], "f has no session"),
        ([json.dumps({"session": 0, "at": 0, "turns": []})], "line 1: turns is []"),
        ([line(0, input_length=0)], "line 1: input_length is 0"),
        ([line(0, pause=-1)], "line 1: pause is -1"),
        ([line(0, at=float("nan"))], "line 1: at is nan"),
        ([line(0, hash_ids=["a"])], "line 1: hash_ids is ['a']"),
        ([line(0), line(0)], "line 2: session is 0; it must be another session's number"),
        ([line(0, children=[1]), line(2, children=[1])], "line 2: children is [1]"),
        ([line(0, children=[1])], "session 1 is some turn's child and has no line"),
        ([line(0, children=[1]), line(1)], "session 1 has an at and is a turn's child"),
        ([line(0), line(1, None)], "session 1 has no at"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(lines: list[str], said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        read_sessions(lines, "f")
    assert said in refused.value.message
