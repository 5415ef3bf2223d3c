"""Sessions: conversations of several turns, a JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import Code, HeadwayError
from headway.workload.rows import BadValueError, Record, instant, open_text, read_rows, tokens

BLOCK_TOKENS = 512
"""Tokens of a block that a hash id of a file names."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A request of a session, ``pause`` seconds after the turn before it and its children ended.

    ``input_length``: tokens of the whole prompt, history included. ``hash_ids``: of the blocks of
    the prompt; prompts that begin with the same ids begin with the same tokens. ``children``:
    sessions that start when this turn has ended.
    """

    pause: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """Turns one after the other; ``at`` is None where a parent's turn starts it."""

    number: int
    kind: str
    at: float | None
    turns: tuple[SessionTurn, ...]


def load_sessions(path: Path) -> list[Session]:
    """Read a file, gzipped (.gz) or not; HeadwayError names it, the line and what is wrong."""
    with open_text(path, "file") as lines:
        return read_sessions(lines, str(path))


def read_sessions(lines: Iterable[str], name: str) -> list[Session]:
    """Read sessions from the lines of a file called ``name``."""
    rows = read_rows(lines, name)
    found: dict[int, Session] = {}
    children: set[int] = set()
    for number, record in rows.records:
        try:
            session = _session(record)
            named = [child for turn in session.turns for child in turn.children]
            if session.number in found:
                raise BadValueError("session", session.number, "another session's number")
            if len({*named, *children}) < len(named) + len(children):
                raise BadValueError("children", named, "the children of one turn alone")
        except BadValueError as bad:
            raise rows.wrong(number, bad) from None
        found[session.number] = session
        children.update(named)
    _refuse_lost(found, children, name)
    return list(found.values())


def _session(record: Record) -> Session:
    at = None if record.get("at") is None else instant(record, "at", "seconds")
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, dict) for t in turns):
        raise BadValueError("turns", turns, "a list of one turn or more")
    number, kind = tokens(record, "session", 0), str(record.get("kind", ""))
    return Session(number, kind, at, tuple(_turn(each) for each in turns))


def _turn(record: Record) -> SessionTurn:
    pause = instant({"pause": 0.0, **record}, "pause", "seconds")
    lengths = tokens(record, "input_length"), tokens(record, "output_length")
    return SessionTurn(pause, *lengths, _ids(record, "hash_ids"), _ids(record, "children"))


def _ids(record: Record, field: str) -> tuple[int, ...]:
    ids = record.get(field, [])
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise BadValueError(field, ids, "a list of whole numbers")
    return tuple(ids)


def _refuse_lost(sessions: Mapping[int, Session], children: set[int], name: str) -> None:
    """Raise HeadwayError for a child that is missing, and for a session that nothing starts."""
    alone = {each.number for each in sessions.values() if each.at is not None}
    missing, twice = sorted(children - sessions.keys()), sorted(children & alone)
    lost = sorted(sessions.keys() - children - alone)
    for numbers, wrong in (
        (missing, "is some turn's child and has no line"),
        (lost, "has no at and is no turn's child, so nothing starts it"),
        (twice, "has an at and is a turn's child, so two things start it"),
    ):
        if numbers:
            message = f"{name}: session {numbers[0]} {wrong}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
