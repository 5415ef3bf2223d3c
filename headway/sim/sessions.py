"""Closed loops: sessions whose turns follow the end of the one before, after its pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headway.errors import require_over
from headway.sim.clients import SimRequest
from headway.sim.kernel import Kernel
from headway.sim.records import Record
from headway.workload.session import Session, parents_of, roots_of, starts_of

_CUT = "one of its sessions lost a turn"


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """Sessions to run; a child's start waits for its parent's turn.

    ``names``: whether requests name their session. ``says_end``: whether the last turn of one says
    so, as a hint. ``by_root``: whether children's requests name the session that started by itself,
    as sub-agents do that have their agent's name; no turn of theirs ends it.
    """

    sessions: Sequence[Session]
    names: bool = True
    says_end: bool = False
    by_root: bool = False
    _roots: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        roots = roots_of(self.sessions) if self.by_root else {}
        object.__setattr__(self, "_roots", roots)

    @property
    def num_requests(self) -> int:
        """Turns of all sessions, if none is cut."""
        return sum(len(each.turns) for each in self.sessions)

    @property
    def starts(self) -> Sequence[float]:
        """When sessions start that start by themselves, in order; seconds."""
        return sorted(each.at for each in self.sessions if each.at is not None)

    def faster(self, factor: float) -> SessionLoad:
        """Return the same sessions, started in 1/``factor`` of the time; pauses stay."""
        require_over("the factor", factor, 0)
        sessions = [
            each if each.at is None else replace(each, at=each.at / factor)
            for each in self.sessions
        ]
        return replace(self, sessions=sessions)

    def replayed(self, rate: float) -> list[SimRequest]:
        """Return the turns as requests of an open loop, ``rate`` a second in the mean.

        Each comes as if answers took no time, sooner or later by the same factor for all.
        """
        starts = starts_of(self.sessions)
        asked: list[SimRequest] = []
        for session in self.sessions:
            at = starts[session.number]
            for place, turn in enumerate(session.turns):
                at += turn.pause if place else 0.0
                asked.append(self.request(session, place, at))
        asked.sort(key=lambda each: each.arrival_at)
        first = asked[0].arrival_at
        speed = rate * (asked[-1].arrival_at - first) / max(1, len(asked) - 1) or 1.0
        return [replace(r, arrival_at=(r.arrival_at - first) / speed) for r in asked]

    def request(self, session: Session, place: int, at: float) -> SimRequest:
        """Return a turn of a session, asked at an instant."""
        turn = session.turns[place]
        name = self._roots.get(session.number, session.number)
        is_last = name == session.number and place == len(session.turns) - 1
        return SimRequest(
            f"{session.kind or 'session'}-{session.number}.{place}",
            at,
            turn.input_length,
            turn.output_length,
            turn.reasoning_length,
            turn.hash_ids,
            session_id=str(name) if self.names else "",
            ends_session=self.names and self.says_end and is_last,
        )


@dataclass(frozen=True, slots=True)
class SessionTask:
    """A session that started by itself, with its children and theirs; instants in seconds.

    ``num_turns`` were asked by all of them. ``error``: why a turn of theirs had no answer; the
    session that lost it asks nothing more.
    """

    session: int
    kind: str
    begun_at: float
    ended_at: float
    num_turns: int
    error: str = ""

    @property
    def seconds(self) -> float:
        """From its first ask to the end of its last turn, and of its children's."""
        return self.ended_at - self.begun_at


@dataclass(slots=True)
class _Running:
    """A session as it goes; ``num_open``: its turn, and children that its next turn waits for."""

    session: Session
    task: _RunningTask
    place: int = -1
    num_open: int = 0


@dataclass(slots=True)
class _RunningTask:
    begun_at: float
    num_turns: int = 0
    error: str = ""


@dataclass(slots=True)
class SessionClients:
    """Clients that hold sessions; ``submit`` takes each request at its arrival."""

    load: SessionLoad
    kernel: Kernel
    submit: Callable[[SimRequest], None]
    tasks: list[SessionTask] = field(default_factory=list)
    _sessions: dict[int, Session] = field(init=False)
    _parents: dict[int, int] = field(init=False)
    _running: dict[int, _Running] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _num_left: int = 0

    def __post_init__(self) -> None:
        self._sessions = {each.number: each for each in self.load.sessions}
        self._parents = dict(parents_of(self.load.sessions))

    @property
    def are_waiting(self) -> bool:
        """True if a session is open or still to come."""
        return self._num_left > 0

    def begin(self) -> None:
        """Have every session start that does so by itself."""
        for each in self.load.sessions:
            if each.at is not None:
                self._num_left += 1
                self.kernel.at(each.at, partial(self._start, each, None))

    def ended(self, record: Record) -> None:
        """Go on behind a request that is over; one of no session is nobody's."""
        number = self._asked.pop(record.request_id, None)
        if number is None:
            return
        running = self._running[number]
        if not record.finished:
            running.task.error = record.error or _CUT
            running.place = len(running.session.turns)
        else:
            for child in running.session.turns[running.place].children:
                running.num_open += 1
                self.kernel.after(0.0, partial(self._start, self._sessions[child], running.task))
        self._part_ended(running)

    def _start(self, session: Session, task: _RunningTask | None) -> None:
        task = task or _RunningTask(self.kernel.now)
        running = self._running[session.number] = _Running(session, task)
        self._ask(running)

    def _ask(self, running: _Running) -> None:
        running.place += 1
        running.num_open = 1
        running.task.num_turns += 1
        request = self.load.request(running.session, running.place, self.kernel.now)
        self._asked[request.request_id] = running.session.number
        self.submit(request)

    def _part_ended(self, running: _Running) -> None:
        """Note that a turn is over, or a child of it; the next one waits for all of them."""
        running.num_open -= 1
        if running.num_open:
            return
        turns = running.session.turns
        if running.place + 1 < len(turns):
            self.kernel.after(turns[running.place + 1].pause, partial(self._ask, running))
        else:
            self._session_ended(running)

    def _session_ended(self, running: _Running) -> None:
        session, task = running.session, running.task
        del self._running[session.number]
        parent = self._parents.get(session.number)
        if parent is not None:
            self._part_ended(self._running[parent])
            return
        self._num_left -= 1
        self.tasks.append(
            SessionTask(
                session.number,
                session.kind,
                task.begun_at,
                self.kernel.now,
                task.num_turns,
                task.error,
            )
        )
