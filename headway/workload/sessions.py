"""Files of sessions: our own lines, Mooncake's rows, and AIPerf's conversations.

A line of our own: ``{"session": 0, "kind": "agent", "at": 0.0, "turns": [{"pause": 0.0,
"input_length": 900, "output_length": 80, "hash_ids": [1, 2], "children": []}]}``. Rows that
``headway.workload.aiperf`` writes have all of this, too, and are read back as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from headway.errors import Code, HeadwayError
from headway.workload.aiperf import MULTI_TURN_KEYS, OURS, TRACE_KEYS, Conversations, trace_rows
from headway.workload.rows import BadValueError, Record, instant, open_text, read_rows, tokens
from headway.workload.session import BLOCK_TOKENS, Session, SessionTurn, refuse_lost

__all__ = ["BLOCK_TOKENS", "Session", "SessionTurn"]
_OWN_KEYS = {"session", "turns"}


def load_sessions(path: Path) -> list[Session]:
    """Read a file, gzipped (.gz) or not; HeadwayError names it, the line and what is wrong."""
    with open_text(path, "file") as lines:
        return read_sessions(lines, str(path))


def has_sessions(path: Path) -> bool:
    """Return whether a file's first row is of sessions, not of single requests."""
    with open_text(path, "file") as lines:
        keys = set(read_rows(lines, str(path)).keys)
    return bool(keys & {*MULTI_TURN_KEYS, OURS, "session_id"})


def read_sessions(lines: Iterable[str], name: str) -> list[Session]:
    """Read sessions from the lines of a file called ``name``, in any of the formats."""
    rows = read_rows(lines, name)
    keys = set(rows.keys)
    by_number: dict[int, Session] = {}
    conversations = Conversations()
    children: set[int] = set()
    for number, record in rows.records:
        try:
            if keys >= _OWN_KEYS or OURS in keys:
                _add(by_number, children, record)
            elif keys >= TRACE_KEYS:
                conversations.add_trace_row(record)
            elif keys >= MULTI_TURN_KEYS:
                conversations.add_multi_turn(record)
            else:
                raise BadValueError("the row", rows.first, f"with {_KNOWN}")
        except BadValueError as bad:
            raise rows.wrong(number, bad) from None
    by_number |= {each.number: each for each in conversations.sessions()}
    if not by_number:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{name} has no session; it must have one a line")
    refuse_lost(by_number, name)
    return list(by_number.values())


_KNOWN = (
    "session and turns (Headway), input_length and output_length (Mooncake, AIPerf's "
    "mooncake_trace) or turns (AIPerf's multi_turn)"
)


def _add(by_number: dict[int, Session], children: set[int], record: Record) -> None:
    """Add a line of our own; of rows for AIPerf, the first of a session holds it."""
    own = record.get(OURS, record if "turns" in record else None)
    if own is None:
        return
    if not isinstance(own, Mapping):
        raise BadValueError(OURS, own, "a session")
    session = _session(own)
    named = [child for turn in session.turns for child in turn.children]
    if session.number in by_number:
        raise BadValueError("session", session.number, "another session's number")
    if len({*named, *children}) < len(named) + len(children):
        raise BadValueError("children", named, "the children of one turn alone")
    by_number[session.number] = session
    children.update(named)


def _session(record: Record) -> Session:
    at = None if record.get("at") is None else instant(record, "at", "seconds")
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, dict) for t in turns):
        raise BadValueError("turns", turns, "a list of one turn or more")
    number, kind = tokens(record, "session", 0), record.get("kind", "")
    if not isinstance(kind, str):
        raise BadValueError("kind", kind, "a text")
    return Session(number, kind, at, tuple(_turn(each) for each in turns))


def _turn(record: Record) -> SessionTurn:
    pause = instant({"pause": 0.0, **record}, "pause", "seconds")
    lengths = tokens(record, "input_length"), tokens(record, "output_length")
    reasoning = tokens({"reasoning_length": 0, **record}, "reasoning_length", 0)
    if reasoning >= lengths[1]:
        limit = f"less than output_length, which is {lengths[1]}"
        raise BadValueError("reasoning_length", reasoning, limit)
    return SessionTurn(
        pause, *lengths, _ids(record, "hash_ids"), _ids(record, "children"), reasoning
    )


def _ids(record: Record, field: str) -> tuple[int, ...]:
    ids = record.get(field, [])
    if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise BadValueError(field, ids, "a list of whole numbers, 0 or more")
    return tuple(ids)


# --- writing --------------------------------------------------------------------------


def written(sessions: Iterable[Session]) -> Iterator[str]:
    """Yield a line a session."""
    for each in sessions:
        yield json.dumps(_packed(each))


def written_for_aiperf(sessions: Iterable[Session]) -> Iterator[str]:
    """Yield AIPerf's ``mooncake_trace`` rows, a line a turn, which ``read_sessions`` reads back.

    AIPerf replays them with what it cannot say left out: ``headway.workload.aiperf`` lists it.
    """
    listed = list(sessions)
    packed = {each.number: _packed(each) for each in listed}
    for number, row in trace_rows(listed):
        own = packed.pop(number, None)  # with the session's first row
        yield json.dumps(row if own is None else {**row, OURS: own})


def _packed(session: Session) -> dict[str, object]:
    turns = [_packed_turn(turn) for turn in session.turns]
    return {"session": session.number, "kind": session.kind, "at": session.at, "turns": turns}


def _packed_turn(turn: SessionTurn) -> dict[str, object]:
    packed: dict[str, object] = {
        "pause": turn.pause,
        "input_length": turn.input_length,
        "output_length": turn.output_length,
        "hash_ids": list(turn.hash_ids),
        "children": list(turn.children),
    }
    return packed | ({"reasoning_length": turn.reasoning_length} if turn.reasoning_length else {})
