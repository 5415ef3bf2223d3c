"""Conversations as AIPerf has them, and Mooncake's rows, which it reads, too.

``mooncake_trace``: a row a turn with ``input_length``, ``output_length`` and, each optional,
``timestamp`` and ``delay`` (ms), ``session_id`` and ``hash_ids``. Rows of one session have lengths
of what each turn *adds*: AIPerf puts the history and the live answers before it. A row without a
session is a session of one turn. ``multi_turn``: a session a line, its turns with texts, which
count as a token for every four characters.

AIPerf 0.13 lets other fields of a row pass. Not said in its rows: a child starts with its parent's
first row plus all pauses between, as if answers took no time, and nobody waits for its end; a
prompt that does not go on from the one before it starts a conversation of its own; answers are
live, so only whole blocks of a conversation's *first* prompt are shared with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from headway.workload.rows import BadValueError, Record, instant, tokens
from headway.workload.session import BLOCK_TOKENS, Session, SessionTurn, starts_of

TRACE_KEYS = {"input_length", "output_length"}
MULTI_TURN_KEYS = {"turns"}
OURS = "headway"
"""The field of a row that holds the whole session, which AIPerf lets pass."""
_CHARS_PER_TOKEN = 4
_CHARS_PER_BLOCK = _CHARS_PER_TOKEN * BLOCK_TOKENS


@dataclass(slots=True)
class _Conversation:
    """A conversation as it is read: ``at`` seconds, ``ids`` of the blocks so far."""

    at: float
    turns: list[SessionTurn] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens that the next prompt begins with."""
        return self.turns[-1].input_length + self.turns[-1].output_length if self.turns else 0


class Conversations:
    """Reads rows of either format into sessions, numbered by their first row."""

    def __init__(self) -> None:
        self._conversations: dict[str, _Conversation] = {}
        self._texts: dict[str, int] = {}
        self._own_ids = count(1 << 40)  # far from those of files

    def sessions(self) -> Iterator[Session]:
        """Yield what was read; the first of all starts at 0 s."""
        first = min((each.at for each in self._conversations.values()), default=0.0)
        for number, (name, each) in enumerate(self._conversations.items()):
            kind = name.partition(" ")[0]
            yield Session(number, kind, each.at - first, tuple(each.turns))

    def add_trace_row(self, record: Record) -> None:
        """Add a row of a trace."""
        known = _hash_ids(record)
        name = record.get("session_id")
        if name is None:
            at = _milliseconds(record, "timestamp")
            self._conversation(f"request {len(self._conversations)}", at).turns.append(
                SessionTurn(0.0, *_lengths(record), known)
            )
            return
        each = self._named(name, record)
        length, output = _lengths(record)
        self._add(each, _milliseconds(record, "delay"), length, output, known)

    def add_multi_turn(self, record: Record) -> None:
        """Add a session of texts; each of its turns says its ``output_length``."""
        turns = record.get("turns")
        if not isinstance(turns, list) or not turns or not all(isinstance(t, dict) for t in turns):
            raise BadValueError("turns", turns, "a list of one turn or more")
        name = record.get("session_id", f"{len(self._conversations)}")
        each = self._named(name, turns[0])
        for turn in turns:
            text = _text(turn)
            length = -(-len(text) // _CHARS_PER_TOKEN)
            output = tokens(turn, "output_length")
            known = () if each.turns else self._of_text(text)
            self._add(each, _milliseconds(turn, "delay"), length, output, known)

    def _named(self, name: object, record: Record) -> _Conversation:
        if not isinstance(name, str) or not name:
            raise BadValueError("session_id", name, "a text of at least one character")
        return self._conversation(f"conversation {name}", _milliseconds(record, "timestamp"))

    def _conversation(self, name: str, at: float) -> _Conversation:
        return self._conversations.setdefault(name, _Conversation(at))

    def _add(
        self, each: _Conversation, delay: float, length: int, output: int, known: tuple[int, ...]
    ) -> None:
        """Add a turn that brings ``length`` tokens; ids are known of a first prompt's blocks."""
        pause = delay if each.turns else 0.0
        whole = each.length + length
        ids = list(each.turns[-1].hash_ids if each.turns else known[: length // BLOCK_TOKENS])
        while len(ids) * BLOCK_TOKENS < whole + output:
            ids.append(next(self._own_ids))
        each.turns.append(SessionTurn(pause, whole, output, tuple(ids)))

    def _of_text(self, text: str) -> tuple[int, ...]:
        """Return ids of a first text's whole blocks; equal beginnings have equal ones."""
        ends = range(_CHARS_PER_BLOCK, len(text) + 1, _CHARS_PER_BLOCK)
        return tuple(
            self._texts.setdefault(text[:end], (1 << 41) + len(self._texts)) for end in ends
        )


def _lengths(record: Record) -> tuple[int, int]:
    return tokens(record, "input_length"), tokens(record, "output_length")


def _milliseconds(record: Record, name: str) -> float:
    """Return seconds, 0 where the row does not say."""
    return 0.0 if record.get(name) is None else instant(record, name, "milliseconds") / 1000


def _hash_ids(record: Record) -> tuple[int, ...]:
    ids = record.get("hash_ids") or []
    if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise BadValueError("hash_ids", ids, "a list of whole numbers, 0 or more")
    return tuple(ids)


def _text(turn: Record) -> str:
    texts = turn.get("texts", [turn["text"]] if "text" in turn else None)
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts) or not any(texts):
        raise BadValueError("text", texts, "a text, or texts, of at least one character")
    return "".join(texts)


# --- writing --------------------------------------------------------------------------


def trace_rows(sessions: Sequence[Session]) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield ``mooncake_trace`` rows, each with the number of its session."""
    starts = starts_of(sessions)
    fresh = count(1 + max((i for s in sessions for t in s.turns for i in t.hash_ids), default=0))
    for session in sessions:
        name, at, before = f"{session.number}", starts[session.number], None
        for place, turn in enumerate(session.turns):
            at += turn.pause if place else 0.0
            goes_on = before is not None and _goes_on(before, turn)
            if before is not None and goes_on:
                length = turn.input_length - before.input_length - before.output_length
                ids: list[int] = []
                when = {"delay": round(1000 * turn.pause, 3)}
            else:
                name = f"{session.number}.{place}" if place else name
                length, ids = turn.input_length, _own_last(turn, fresh)
                when = {"timestamp": round(1000 * at, 3)}
            more = {"hash_ids": ids} if ids else {}
            lengths = {"input_length": length, "output_length": turn.output_length}
            yield session.number, {"session_id": name, **when, **lengths, **more}
            before = turn


def _goes_on(before: SessionTurn, turn: SessionTurn) -> bool:
    """Return whether a prompt is the one before it, its answer and more."""
    held = before.input_length + before.output_length
    num_whole = held // BLOCK_TOKENS
    same = before.hash_ids[:num_whole] == turn.hash_ids[:num_whole]
    return turn.input_length > held and same


def _own_last(turn: SessionTurn, fresh: Iterator[int]) -> list[int]:
    """Return a first prompt's ids: AIPerf wants a block that is not whole to be nobody else's."""
    num_whole, rest = divmod(turn.input_length, BLOCK_TOKENS)
    if len(turn.hash_ids) < num_whole:
        return []
    return [*turn.hash_ids[:num_whole], *([next(fresh)] if rest else [])]
