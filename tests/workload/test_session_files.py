"""Sessions are read line by line; what nobody could run is refused with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.workload.sessions import (
    Session,
    SessionTurn,
    read_sessions,
    written,
    written_for_aiperf,
)


def line(number: int, at: float | None = 0.0, **turn: Any) -> str:
    turns = [{"pause": 0.5, "input_length": 9, "output_length": 2, **turn}]
    return json.dumps({"session": number, "kind": "agent", "at": at, "turns": turns})


def row(**changed: Any) -> str:
    """Return a row of Mooncake's, or of AIPerf's."""
    return json.dumps({"timestamp": 500, "input_length": 1300, "output_length": 10, **changed})


def texts(name: str, *turns: dict[str, Any]) -> str:
    return json.dumps({"session_id": name, "turns": turns})


FORKED = [
    Session(
        0,
        "agent",
        2.0,
        (
            SessionTurn(0.0, 1100, 100, (1, 2, 3), (7,)),
            SessionTurn(1.5, 1700, 400, (1, 2, 4, 5, 6), (), 30),
            SessionTurn(0.5, 900, 40, (1, 8), ()),
        ),
    ),
    Session(7, "sub", None, (SessionTurn(0.0, 1600, 50, (1, 2, 9, 10)),)),
]


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
        ([line(0), line(1, None, children=[1])], "session 1 is its own ancestor"),
        ([line(0, reasoning_length=2)], "line 1: reasoning_length is 2; it must be less than"),
        ([line(0, hash_ids=[-1])], "line 1: hash_ids is [-1]"),
        ([json.dumps({"prompt": 1})], "line 1: the row is '{\"prompt\": 1}'; it must be with"),
        ([row(input_length=0)], "line 1: input_length is 0"),
        ([row(session_id=3)], "line 1: session_id is 3"),
        ([row(session_id="a", delay=-1)], "line 1: delay is -1"),
        ([texts("a", {"text": "hello"})], "line 1: output_length is None"),
        ([texts("a", {"image": "x", "output_length": 3})], "line 1: text is None"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(lines: list[str], said: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        read_sessions(lines, "f")
    assert said in refused.value.message


def test_sessions_are_written_and_read_back() -> None:
    assert read_sessions(written(FORKED), "f") == FORKED


def test_rows_for_aiperf_hold_the_sessions_themselves() -> None:
    assert read_sessions(written_for_aiperf(FORKED), "f") == FORKED


def test_rows_for_aiperf_say_what_each_turn_adds() -> None:
    rows = [json.loads(each) for each in written_for_aiperf(FORKED)]
    for each in rows:
        each.pop("headway", None)
    assert rows[:2] == [
        {
            "session_id": "0",
            "timestamp": 2000.0,
            "input_length": 1100,
            "output_length": 100,
            "hash_ids": [1, 2, 11],  # a block that is not whole is nobody else's
        },
        {"session_id": "0", "delay": 1500.0, "input_length": 500, "output_length": 400},
    ]
    # a summary of the history, and a child that starts with it, are conversations of their own
    assert [(each["session_id"], each["timestamp"]) for each in rows[2:]] == [
        ("0.2", 4000.0),
        ("7", 2000.0),
    ]


def test_another_reader_of_aiperfs_rows_finds_the_same_prompts() -> None:
    rows = [json.loads(each) for each in written_for_aiperf(FORKED)]
    bare = [json.dumps({k: v for k, v in each.items() if k != "headway"}) for each in rows]
    found = read_sessions(bare, "f")
    lengths = [[turn.input_length for turn in each.turns] for each in found]
    assert lengths == [[1100, 1700], [900], [1600]]
    assert found[0].turns[0].hash_ids[:2] == found[2].turns[0].hash_ids[:2] == (1, 2)
    assert found[0].turns[1].hash_ids[:3] == found[0].turns[0].hash_ids
    assert found[0].turns[1].pause == 1.5


def test_each_row_of_mooncakes_is_a_session_of_one_turn() -> None:
    found = read_sessions([row(hash_ids=[4, 5, 6]), row(timestamp=3500)], "f")
    turn = SessionTurn(0.0, 1300, 10, (4, 5, 6))
    other = SessionTurn(0.0, 1300, 10)
    assert found == [Session(0, "request", 0.0, (turn,)), Session(1, "request", 3.0, (other,))]


def test_texts_of_a_session_count_a_token_for_four_characters() -> None:
    system = "x" * 4096
    first, second = (
        texts(
            name,
            {"text": system + name, "output_length": 7},
            {"texts": ["go", " on"], "delay": 250, "output_length": 9},
        )
        for name in ("a", "b")
    )
    found = read_sessions([first, second], "f")
    assert [turn.input_length for turn in found[0].turns] == [1025, 1025 + 7 + 2]
    assert found[0].turns[1].pause == 0.25
    shared = [each.turns[0].hash_ids[:2] for each in found]
    assert shared[0] == shared[1]
    assert found[0].turns[0].hash_ids[2] != found[1].turns[0].hash_ids[2]
