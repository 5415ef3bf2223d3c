"""A checker of histories: what clients asked for, what they read, and how it ended.

``headway vopr`` and ``headway chaos`` write the same records, so both keep the same promises:

- every client reads a beginning of the undisturbed answer, token by token: none is wrong, lost,
  doubled or out of order;
- an answer that ends without an error is complete;
- nothing follows an end, and every request ends once;
- every request ends, or says why not, by its deadline plus ``bound``.

A token is whatever the client can compare: a token id, or a character of text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from math import inf

from headway.errors import Code

Token = int | str

REASONS = frozenset(
    {
        Code.UNAVAILABLE,
        Code.RESOURCE_EXHAUSTED,
        Code.DEADLINE_EXCEEDED,
    }
)
"""Codes with which a cluster under faults may refuse or give up a correct request."""
DIED = "the workers that ran this request died"
"""Part of a refusal that two lost workers excuse (``headway/core/gateway/attempts.py``)."""


# --- the history ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request. ``deadline_at`` is the instant by which it has to end."""

    request_id: str
    at: float
    expected: Sequence[Token]
    """The undisturbed answer, all of it."""
    deadline_at: float = inf


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens that a client has read, in order.

    ``index`` is that of the first one, or None where the client is not told.
    """

    request_id: str
    at: float
    tokens: Sequence[Token]
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer as its client reads it: complete."""

    request_id: str
    at: float
    reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a request with an error; ``code`` is the name of a ``headway.errors.Code``."""

    request_id: str
    at: float
    code: str
    message: str = ""
    is_excused: bool = False
    """True if the faults excuse any code: its workers have died, for example."""


@dataclass(frozen=True, slots=True)
class Left:
    """The client hung up: it reads nothing more."""

    request_id: str
    at: float


Record = Asked | Read | Ended | Failed | Left


def to_lines(records: Iterable[Record]) -> Iterator[str]:
    """Yield each record as a line of JSON."""
    for record in records:
        yield json.dumps({"kind": type(record).__name__.lower(), **asdict(record)})


# --- the checker ----------------------------------------------------------------------


class HistoryFault(Enum):
    """A broken promise."""

    WRONG = "a token differs from the undisturbed answer"
    DOUBLED = "a token came twice"
    LOST = "tokens are missing"
    AFTER_END = "something followed the end"
    UNASKED = "nobody asked for it"
    BAD_ERROR = "an error that no fault of the cluster excuses"
    LATE = "it ended after its deadline"
    OPEN = "it never ended"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, and where."""

    fault: HistoryFault
    request_id: str
    at: float
    detail: str

    def __str__(self) -> str:
        return f"{self.request_id} at {self.at:.6f}: {self.fault.value}: {self.detail}"


@dataclass(slots=True)
class _Answer:
    """A request and what its client has read so far."""

    asked: Asked
    num_read: int = 0
    end: str = ""


@dataclass(slots=True)
class HistorySummary:
    """Figures of a checked history."""

    num_requests: int = 0
    num_tokens: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Requests by their end: a finish reason, "left", or an error's code."""
    faults: Counter[HistoryFault] = field(default_factory=Counter)


class Checker:
    """A reader of records in the order in which they happened; ``violations`` are what it found.

    ``errors``: codes that a request may fail with. ``bound``: seconds that a request may end after
    its deadline.
    """

    def __init__(self, *, errors: Collection[Code] = REASONS, bound: float = 1.0) -> None:
        self.violations: list[Violation] = []
        self.summary = HistorySummary()
        self._errors = frozenset(code.name for code in errors)
        self._bound = bound
        self._answers: dict[str, _Answer] = {}

    @property
    def open_ids(self) -> list[str]:
        """Requests that have not ended, in the order in which they were asked."""
        return [name for name, answer in self._answers.items() if not answer.end]

    def take(self, record: Record) -> None:
        """Check one record against those before it."""
        if isinstance(record, Asked):
            assert record.request_id not in self._answers, "request ids are never reused"
            self._answers[record.request_id] = _Answer(record)
            self.summary.num_requests += 1
            return
        answer = self._answers.get(record.request_id)
        if answer is None:
            self._violated(HistoryFault.UNASKED, record.request_id, record.at, repr(record))
        elif answer.end:
            if answer.end != "left":  # what a client does not read breaks no promise
                self._violated(HistoryFault.AFTER_END, record.request_id, record.at, repr(record))
        elif isinstance(record, Read):
            self._read(answer, record)
        else:
            self._ended(answer, record)

    def finish(self, now: float) -> list[Violation]:
        """Check that nothing is open when the history ends; return all violations."""
        for answer in self._answers.values():
            if not answer.end:
                detail = f"{answer.num_read} of {len(answer.asked.expected)} tokens were read"
                self._violated(HistoryFault.OPEN, answer.asked.request_id, now, detail)
        return self.violations

    def _read(self, answer: _Answer, record: Read) -> None:
        expected, at = answer.asked.expected, record.at
        if record.index is not None and record.index != answer.num_read:
            fault = HistoryFault.DOUBLED if record.index < answer.num_read else HistoryFault.LOST
            detail = f"token {record.index} came when {answer.num_read} had been read"
            self._violated(fault, record.request_id, at, detail)
            return
        for token in record.tokens:
            index = answer.num_read
            if index >= len(expected):
                detail = f"token {token!r} came after all {len(expected)}"
                self._violated(HistoryFault.DOUBLED, record.request_id, at, detail)
                return
            if token != expected[index]:
                detail = f"token {index} is {token!r}; undisturbed it is {expected[index]!r}"
                self._violated(HistoryFault.WRONG, record.request_id, at, detail)
                return
            answer.num_read += 1
            self.summary.num_tokens += 1

    def _ended(self, answer: _Answer, record: Ended | Failed | Left) -> None:
        asked = answer.asked
        if isinstance(record, Ended):
            answer.end = record.reason
            if answer.num_read < len(asked.expected):
                detail = f"it ended after {answer.num_read} of {len(asked.expected)} tokens"
                self._violated(HistoryFault.LOST, asked.request_id, record.at, detail)
        elif isinstance(record, Failed):
            answer.end = record.code
            if record.code not in self._errors and not record.is_excused:
                detail = f"{record.code}: {record.message}"
                self._violated(HistoryFault.BAD_ERROR, asked.request_id, record.at, detail)
        else:
            answer.end = "left"
        self.summary.ends[answer.end] += 1
        if record.at > asked.deadline_at + self._bound:
            detail = f"{record.at - asked.deadline_at:.3f} s after its deadline"
            self._violated(HistoryFault.LATE, asked.request_id, record.at, detail)

    def _violated(self, fault: HistoryFault, request_id: str, at: float, detail: str) -> None:
        self.summary.faults[fault] += 1
        self.violations.append(Violation(fault, request_id, at, detail))
