"""Sessions by the names that clients gave: turns, pauses, task times, and where the last turn ran.

A turn is one call; its outputs count as one. A session is over with the turn that ends it, or after
it was idle for long, which is noticed with the next request. Each gateway counts what it serves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

from headway.core.gateway.state import OpenRequest
from headway.request import Request, call_of

SessionKey = tuple[str, str]
"""Tenant and name: equal names of two tenants are two sessions."""

_TURNS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 35.0, 60.0, 100.0, 200.0, 500.0)
_PAUSES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_TASKS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0, 14400.0)

CLIENT, IDLE, DROPPED = "client", "idle", "dropped"
ENDS = (CLIENT, IDLE, DROPPED)
"""Why a session is over: its client said so, it was idle, or newer ones needed its place."""


class SizeCounts:
    """Values counted by size: how many are at most as great as each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def cumulated(self) -> list[int]:
        """The values up to each bound, and in the end all of them."""
        return list(accumulate(self._counts))


class TurnNumber(NamedTuple):
    """A request's place in its session."""

    number: int = 0
    """Of the turn, from 1; 0 without a session."""
    ends_session: bool = False


class TurnPlace(NamedTuple):
    """Where a turn ran, and how much of its prompt was there."""

    worker_ids: tuple[str, ...] = ()
    """The worker that gave its first token, and the last one where that is another."""
    num_prompt: int = 0
    num_cached: int = 0
    decision: str = ""
    """The scheduler's word on its place."""


NO_PLACE = TurnPlace()


class SessionRow(NamedTuple):
    """One session at one instant."""

    session_id: str
    tenant: str
    num_turns: int
    num_running: int
    """Outputs that are open."""
    place: TurnPlace
    """Of the newest turn that is running and has a token, else of the last one that ended."""
    request_id: str
    """The newest output that is open, "" for none."""
    idle: float
    """Seconds since its last turn ended; 0 while one runs."""
    age: float
    """Seconds since its first turn came."""


@dataclass(slots=True, eq=False)
class _Session:
    key: SessionKey
    first_at: float
    """Arrival of its first turn."""
    last_at: float = 0.0
    """Newest end of a turn."""
    num_turns: int = 0
    is_over: bool = False
    newest_call: str = ""
    first_call: str = ""
    place: TurnPlace = NO_PLACE
    running: dict[str, OpenRequest] = field(default_factory=dict)


class Sessions:
    """The sessions of one gateway: those with a running turn, and the newest idle ones.

    ``idle``: seconds after which a session counts as over. ``most``: idle sessions kept.
    """

    def __init__(self, idle: float, most: int) -> None:
        self._idle_time, self._most = idle, most
        self._running: dict[SessionKey, _Session] = {}
        self._idle: OrderedDict[SessionKey, _Session] = OrderedDict()  # by their last ends
        self.turns, self.pauses, self.tasks = (
            SizeCounts(_TURNS),
            SizeCounts(_PAUSES),
            SizeCounts(_TASKS),
        )
        self.num_over = dict.fromkeys(ENDS, 0)
        self.prompt_tokens = {(first, hit): 0 for first in (True, False) for hit in (True, False)}
        """Prompt tokens of outputs that began, by whether it was in a session's first turn, and
        whether they were found in a prefix cache."""

    @property
    def num_running(self) -> int:
        """Number of sessions with a running turn."""
        return len(self._running)

    @property
    def num_idle(self) -> int:
        """Number of sessions that are kept and have none."""
        return len(self._idle)

    def came(self, request: Request, max_turns: int, *, now: float) -> TurnNumber:
        """Count a request of a session; ``max_turns``: the bound that its client gave, 0 for none.

        The newest turn's word on the session's end holds. ``began`` has to follow.
        """
        self._expire(now)
        if not request.session_id:
            return TurnNumber(0, request.ends_session)
        key = request.standing.tenant, request.session_id
        session = self._running.get(key)
        if session is None:
            session = self._idle.pop(key, None) or _Session(key, request.arrival_at)
            if session.num_turns:
                self.pauses.add(max(0.0, request.arrival_at - session.last_at))
            self._running[key] = session
        call = call_of(request.request_id)
        if call != session.newest_call:
            session.newest_call = call
            session.first_call = session.first_call or call
            session.num_turns += 1
        session.is_over = request.ends_session or 0 < max_turns <= session.num_turns
        return TurnNumber(session.num_turns, session.is_over)

    def began(self, state: OpenRequest) -> None:
        """Take the open request of a turn that came."""
        session = self._running.get(_key_of(state.request))
        if session is not None:
            session.running[state.request_id] = state

    def ended(self, state: OpenRequest, *, now: float) -> None:
        """Take the end of a request, whatever ended it."""
        session = self._running.get(_key_of(state.request))
        if session is None or session.running.pop(state.request_id, None) is None:
            return
        if state.output:
            session.place = _place_of(state)
            self._count_prompt(session, state)
        session.last_at = max(session.last_at, now)
        if session.running:
            return
        del self._running[session.key]
        if session.is_over:
            self._over(session, CLIENT)
        else:
            self._idle[session.key] = session
            if len(self._idle) > self._most:
                self._over(self._idle.popitem(last=False)[1], DROPPED)
        self._expire(now)

    def newest(self, most: int, *, now: float) -> Iterator[SessionRow]:
        """Yield at most so many sessions: the running ones, then those that ended a turn last."""
        several = (*islice(reversed(self._running.values()), most),)
        for session in (*several, *islice(reversed(self._idle.values()), most - len(several))):
            yield _row(session, now)

    def _count_prompt(self, session: _Session, state: OpenRequest) -> None:
        is_first, place = call_of(state.request_id) == session.first_call, session.place
        self.prompt_tokens[is_first, True] += place.num_cached
        self.prompt_tokens[is_first, False] += place.num_prompt - place.num_cached

    def _expire(self, now: float) -> None:
        while self._idle:
            oldest = next(iter(self._idle.values()))
            if now - oldest.last_at < self._idle_time:
                return
            del self._idle[oldest.key]
            self._over(oldest, IDLE)

    def _over(self, session: _Session, end: str) -> None:
        self.num_over[end] += 1
        self.turns.add(session.num_turns)
        self.tasks.add(max(0.0, session.last_at - session.first_at))


def _key_of(request: Request) -> SessionKey:
    return request.standing.tenant, request.session_id


def _place_of(state: OpenRequest) -> TurnPlace:
    workers = dict.fromkeys((state.first_worker_id, state.worker_id))
    num_prompt = len(state.request.prompt_token_ids)
    return TurnPlace(
        tuple(worker_id for worker_id in workers if worker_id),
        num_prompt,
        min(state.num_cached, num_prompt),
        state.decision,
    )


def _row(session: _Session, now: float) -> SessionRow:
    tenant, session_id = session.key
    newest = next(reversed(session.running.values()), None)
    return SessionRow(
        session_id,
        tenant,
        session.num_turns,
        len(session.running),
        session.place if newest is None or not newest.output else _place_of(newest),
        newest.request_id if newest is not None else "",
        0.0 if session.running else now - session.last_at,
        now - session.first_at,
    )
