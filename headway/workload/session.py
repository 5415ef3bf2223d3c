"""Sessions: conversations of several turns in a closed loop."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.errors import Code, HeadwayError
from headway.workload.arrivals import gaps

BLOCK_TOKENS = 512
"""Tokens of a block that a hash id of a file names."""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """A request of a session, ``pause`` seconds after the turn before it and its children ended.

    ``input_length``: tokens of the whole prompt, history included. ``hash_ids``: of the blocks of
    the prompt, and on into the output where a later turn repeats it; an id stands for all blocks
    before it, too, so equal ids hold equal tokens. ``children``: sessions that start when this
    turn has ended. ``reasoning_length``: the first of the ``output_length`` tokens, which are no
    answer.
    """

    pause: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    reasoning_length: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """Turns one after the other; ``at``: seconds, None where a parent's turn starts it."""

    number: int
    kind: str
    at: float | None
    turns: tuple[SessionTurn, ...]


def parents_of(sessions: Sequence[Session]) -> Mapping[int, int]:
    """Return the number of each child's parent."""
    return {c: each.number for each in sessions for turn in each.turns for c in turn.children}


def roots_of(sessions: Sequence[Session]) -> Mapping[int, int]:
    """Return for each session the number of the one that started by itself and brought it about."""
    parents, roots = parents_of(sessions), dict[int, int]()
    for each in sessions:
        root = each.number
        while root in parents:
            root = parents[root]
        roots[each.number] = root
    return roots


def starts_of(sessions: Sequence[Session]) -> Mapping[int, float]:
    """Return when each session would start if answers took no time, seconds."""
    starts = {each.number: each.at for each in sessions if each.at is not None}
    by_number = {each.number: each for each in sessions}
    waiting = list(starts)
    for number in waiting:  # it grows: children have children
        at = starts[number]
        for place, turn in enumerate(by_number[number].turns):
            at += turn.pause if place else 0.0
            starts.update(dict.fromkeys(turn.children, at))
            waiting += turn.children
    return starts


def first_of(sessions: Sequence[Session], num_sessions: int) -> list[Session]:
    """Return the first so many sessions that start by themselves, and all their children."""
    by_number = {each.number: each for each in sessions}
    first_sessions = [each for each in sessions if each.at is not None][:num_sessions]
    for each in first_sessions:  # it grows: children have children
        first_sessions += [by_number[child] for turn in each.turns for child in turn.children]
    return first_sessions


def started(sessions: Sequence[Session], rate: float, rng: random.Random) -> list[Session]:
    """Return the sessions with Poisson starts, ``rate`` a second (inf: all at once)."""
    between = gaps("poisson", rate, rng)
    at, arrivals = 0.0, []
    for each in sessions:
        if each.at is not None:
            at += next(between)
            each = replace(each, at=at)
        arrivals.append(each)
    return arrivals


def refuse_lost(sessions: Mapping[int, Session], name: str) -> None:
    """Raise HeadwayError for a child that is missing, and for a session that nothing starts."""
    children = parents_of(tuple(sessions.values())).keys()
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
    _refuse_circles(sessions, name)


def _refuse_circles(sessions: Mapping[int, Session], name: str) -> None:
    """Raise HeadwayError for sessions that no one outside of them starts."""
    reached = [each for each in sessions.values() if each.at is not None]
    for each in reached:  # it grows: children have children
        reached += [sessions[child] for turn in each.turns for child in turn.children]
    if len(reached) < len(sessions):
        number = min(sessions.keys() - {each.number for each in reached})
        message = f"{name}: session {number} is its own ancestor, so nothing starts it"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
