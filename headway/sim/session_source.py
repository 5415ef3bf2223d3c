"""A scenario's sessions: of a kind, from a seed, or of a file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.sim.clients import SimRequest
from headway.sim.sessions import SessionLoad
from headway.tables import read, refuse_others
from headway.workload.agents import AGENTS, KINDS, MOST_SESSIONS, AgentParams, make_sessions
from headway.workload.session import Session, first_of, started
from headway.workload.sessions import load_sessions

_PARAMS = tuple(each.name for each in fields(AgentParams))
_NAME = "workload.sessions"


@dataclass(frozen=True, slots=True)
class SessionOptions(Bounded):
    """Options of sessions of any source.

    ``sessions``: how many that start by themselves, 0 for all of a file. ``rate``: of their starts
    a second, 0 for a file's own. ``requests_per_s``: over 0 for an open loop in which turns come
    at that rate, whatever answers take. ``named``, ``says_end``: whether requests name their
    session, and whether the last one says so.
    """

    sessions: int = between(0, MOST_SESSIONS, default=0)
    rate: float = between(0, 1e6, default=0.0)
    requests_per_s: float = between(0, 1e6, default=0.0)
    named: bool = True
    says_end: bool = False


_OPTIONS = tuple(each.name for each in fields(SessionOptions))


@dataclass(frozen=True, slots=True)
class SessionSource:
    """Sessions that a scenario asks for: ``recorded`` ones, or those of a ``kind``."""

    options: SessionOptions
    recorded: Sequence[Session] = ()
    kind: str = ""
    params: AgentParams = AGENTS

    def load(self, seed: int, rate: float = 0.0) -> SessionLoad | list[SimRequest]:
        """Return the sessions of a seed; ``rate``: instead of its own, of requests or of starts."""
        options = self.options
        sessions = self.sessions(seed, 0.0 if options.requests_per_s else rate)
        load = SessionLoad(sessions, options.named, options.says_end)
        if not options.requests_per_s:
            return load
        return load.replayed(rate or options.requests_per_s)

    def sessions(self, seed: int, rate: float = 0.0) -> Sequence[Session]:
        """Return the sessions of a seed, in a closed loop or not; ``rate``: of their starts."""
        rate = rate or self.options.rate
        if not self.recorded:
            return make_sessions(self.kind, seed, self.options.sessions, rate, self.params)
        return started(self.recorded, rate, random.Random(seed)) if rate else self.recorded


def parse_sessions(table: Any, folder: Path) -> SessionSource:
    """Parse a scenario's ``[workload.sessions]``; files begin in ``folder``."""
    refuse_others(_NAME, table, ("kind", "file", *_OPTIONS, *_PARAMS))
    if ("file" in table) == ("kind" in table):
        raise invalid(f"{_NAME}'s keys", sorted(table), "with a kind or with a file, one of them")
    given = {name: table[name] for name in _OPTIONS if name in table}
    options = read(SessionOptions, given, _NAME)
    return (_of_file if "file" in table else _of_kind)(table, options, folder)


def _of_kind(table: Mapping[str, Any], options: SessionOptions, folder: Path) -> SessionSource:
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise invalid(f"{_NAME}.kind", kind, f"one of {', '.join(KINDS)}")
    for name in ("sessions", "rate"):
        if not getattr(options, name):
            raise invalid(f"{_NAME}.{name}", table.get(name), "given, and over 0, with a kind")
    changed = {name: table[name] for name in _PARAMS if name in table}
    params = read(AgentParams, {**asdict(KINDS[kind]), **changed}, _NAME)
    return SessionSource(options, kind=kind, params=params)


def _of_file(table: Mapping[str, Any], options: SessionOptions, folder: Path) -> SessionSource:
    for name in _PARAMS:
        if name in table:
            raise invalid(f"{_NAME}.{name}", table[name], "left out: the file has the sessions")
    file = table["file"]
    if not isinstance(file, str) or not file:
        raise invalid(f"{_NAME}.file", file, "a path")
    sessions = load_sessions(folder / file)
    return SessionSource(
        options, first_of(sessions, options.sessions) if options.sessions else sessions
    )
