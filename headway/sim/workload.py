"""Workloads: arrivals and lengths, drawn from a seed or replayed from a trace."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from headway.bounds import Bounded, one_of, over
from headway.errors import Code, HeadwayError, invalid, require_between, require_over
from headway.service_class import NO_CLASSES, ServiceClass, ServiceClasses
from headway.sim.clients import SimRequest
from headway.sim.request_class import RequestClass, SloLimits, parse_class
from headway.sim.session_source import SessionSource, parse_sessions
from headway.sim.sessions import SessionLoad
from headway.tables import number, refuse_others, tables
from headway.workload.arrivals import PROCESSES, Bursts, gaps
from headway.workload.rates import RateCurve, load_rates
from headway.workload.servegen import ServeGen, load_servegen
from headway.workload.traces import Recorded, TraceRow, load_trace

__all__ = ["BURSTS", "RequestClass", "SloLimits", "Workload", "parse_workload"]

BURSTS = "bursts"
_LATEST = 1e8
"""Seconds, three years: later ones would be told apart too coarsely."""


@dataclass(frozen=True, slots=True)
class Workload(Bounded):
    """Arrivals and what they ask for.

    ``rate`` in requests/s, 0 for a trace's own; ends by count, by seconds, or with the trace.
    ``trace``: its arrivals, and its lengths where there are no ``classes``; with a ``rate`` its
    time runs faster or slower, or rates over time are scaled. ``sessions``: instead of all that,
    in a closed loop; a ``rate`` stands for their own.
    """

    classes: Sequence[RequestClass]
    rate: float
    process: str = one_of(*PROCESSES, BURSTS, default="poisson", name="workload.process")
    burstiness: float = over(0, default=1.0, name="workload.burstiness")
    bursts: Bursts = field(default_factory=Bursts)
    num_requests: int | None = None
    seconds: float | None = over(0, default=None, name="workload.seconds")
    trace: Recorded | None = None
    sessions: SessionSource | None = None

    def __post_init__(self) -> None:
        is_recorded = self.trace is not None or self.sessions is not None
        if not is_recorded:
            require_over("workload.rate", self.rate, 0)
        elif not 0 <= self.rate < inf:
            limit = "0 for the recorded rate, or a finite number over 0"
            raise invalid("workload.rate", self.rate, limit)
        Bounded.__post_init__(self)
        if self.num_requests is None and self.seconds is None and not is_recorded:
            raise invalid("workload.num_requests", None, "given, or workload.seconds")
        if self.num_requests is not None:
            if type(self.num_requests) is not int:
                raise invalid("workload.num_requests", self.num_requests, "a whole number")
            require_between("workload.num_requests", self.num_requests, 1, 1 << 30)

    def slo_of(self, request_id: str) -> SloLimits | None:
        """Return the SLO of a request's class, if that has one."""
        name = request_id.rpartition("-")[0]
        return next((each.slo for each in self.classes if each.name == name), None)

    def service_of(self, request_id: str) -> ServiceClass | None:
        """Return the service class of a request's class, if that has one."""
        name = request_id.rpartition("-")[0]
        services = (each.standing.service for each in self.classes if each.name == name)
        return next(services, None)

    def load(self, seed: int) -> Iterable[SimRequest] | SessionLoad:
        """Return the requests by arrival, or sessions; the same seed gives the same ones."""
        return self.requests(seed) if self.sessions is None else self.sessions.load(seed, self.rate)

    def requests(self, seed: int) -> Iterator[SimRequest]:
        """Return the requests by arrival; HeadwayError for sessions in a closed loop."""
        if self.sessions is not None:
            load = self.sessions.load(seed, self.rate)
            if isinstance(load, SessionLoad):
                message = (
                    "turns of sessions come when others have ended, not at instants that are known "
                    "before: only the cores' fidelity runs them, or give requests_per_s"
                )
                raise HeadwayError(Code.INVALID_ARGUMENT, message, param="workload.sessions")
            return iter(load)
        return islice(self._endless(random.Random(seed)), self.num_requests)

    def _endless(self, rng: random.Random) -> Iterator[SimRequest]:
        shares = [each.share for each in self.classes]
        named = {each.name: each for each in self.classes}
        for place, row in enumerate(self._arrivals(rng)):
            now = row.arrival_at
            if self.seconds is not None and now > self.seconds:
                return
            if now > _LATEST:
                limit = f"at most {_LATEST:g}: give a higher rate, or a trace with real seconds"
                raise invalid("the time of an arrival in seconds", now, limit)
            if not self.classes:
                yield _of_row(place, row)
                continue
            kind = named.get(row.kind) or rng.choices(self.classes, shares)[0]
            num_prompt, num_reasoning, num_answer = kind.lengths(rng)
            num_output = num_reasoning + num_answer
            is_read = kind.read >= 1.0 or rng.random() < kind.read
            yield SimRequest(
                f"{kind.name}-{place}",
                now,
                num_prompt,
                num_output,
                num_reasoning,
                is_read=is_read,
                standing=kind.standing,
            )

    def _arrivals(self, rng: random.Random) -> Iterator[TraceRow]:
        if self.trace is not None:
            yield from self.trace.replay(self.rate, rng)
            return
        now = 0.0
        if self.process == BURSTS:
            drawn = self.bursts.gaps(self.rate, rng)
        else:
            drawn = gaps(self.process, self.rate, rng, burstiness=self.burstiness)
        for gap in drawn:
            now += gap
            yield TraceRow(now)


def _of_row(place: int, row: TraceRow) -> SimRequest:
    if row.prompt_tokens is None or row.output_tokens is None:
        lacking = "prompt_tokens" if row.prompt_tokens is None else "output_tokens"
        message = (
            f"the trace's arrival at {row.arrival_at:g} s has no {lacking}: add that column, or "
            "give a scenario's [[workload.classes]], which draw lengths"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="workload.trace")
    lengths = row.prompt_tokens, row.output_tokens
    return SimRequest(
        f"request-{place}", row.arrival_at, *lengths, row.reasoning_tokens, row.prefix_hashes
    )


# --- reading --------------------------------------------------------------------------

_BURSTS = {f"burst_{each.name}": each.name for each in fields(Bursts)}
_NUMBERS = ("rate", "burstiness", "num_requests", "seconds", *_BURSTS)
_OF_A_PROCESS = ("process", "burstiness")
_WINDOW = ("start", "end", "duration")
_SOURCES = ("trace", "servegen", "rates")
_SESSIONS = "sessions"


def parse_workload(
    table: Mapping[str, Any], folder: Path = Path(), services: ServiceClasses = NO_CLASSES
) -> Workload:
    """Parse a scenario's table; HeadwayError says what is wrong with it.

    Files that it names begin in ``folder``; its classes may name one of ``services``.
    """
    known = ("process", *_SOURCES, "classes", *_NUMBERS, *_WINDOW, _SESSIONS)
    refuse_others("workload", table, known)
    if _SESSIONS in table:
        if len(table) > 1:
            raise invalid("workload's keys", sorted(table), "sessions alone, or without them")
        return Workload([], 0.0, sessions=parse_sessions(table[_SESSIONS], folder))
    for name in (*_NUMBERS, *_WINDOW):
        if name in table:
            number(f"workload.{name}", table[name])
    for name, process in (("burstiness", "gamma"), *((name, BURSTS) for name in _BURSTS)):
        if name in table and table.get("process") != process:
            raise invalid(f"workload.{name}", table[name], f'given with process = "{process}"')
    lengths = [name for name in ("trace", "servegen") if name in table]
    classes = [] if lengths and "classes" not in table else tables(table, "classes", "workload")
    trace = _recorded(table, folder)
    if "rate" not in table and trace is None:
        raise invalid("workload.rate", None, "given, in requests/s")
    plain = ("process", "burstiness", "num_requests", "seconds")
    return Workload(
        _with_own_names([parse_class(each, folder, services) for each in classes]),
        float(table.get("rate", 0.0)),
        bursts=Bursts(**{to: table[name] for name, to in _BURSTS.items() if name in table}),
        trace=trace,
        **{name: table[name] for name in plain if name in table},
    )


def _with_own_names(classes: Sequence[RequestClass]) -> Sequence[RequestClass]:
    """Return the classes; refuse a name that two have, because requests are told apart by it."""
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise invalid("workload.classes.name", name, "a name of its own for each class")
    return classes


def _recorded(table: Mapping[str, Any], folder: Path) -> Recorded | None:
    """Return what gives the arrivals instead of a process, if anything: its window of time."""
    given = [name for name in _SOURCES if name in table]
    window = [name for name in _WINDOW if name in table]
    if not given:
        if window:
            limit = f"given with one of {', '.join(_SOURCES)}"
            raise invalid(f"workload.{window[0]}", table[window[0]], limit)
        return None
    if "process" in table and given != ["rates"]:
        given.append("process")
    if len(given) > 1:
        raise invalid("workload's keys", given, "one of these: each says when requests come")
    source = _read_source(given[0], table, folder, whole=bool(window))
    return source.between(*_window(table)) if window else source


def _window(table: Mapping[str, Any]) -> tuple[float, float]:
    """Return the window's start and end, seconds from the beginning of what was recorded."""
    start, end, duration = (table.get(name) for name in _WINDOW)
    if end is not None and duration is not None:
        raise invalid("workload.duration", duration, "left out where end is given")
    begins_at = 0.0 if start is None else float(start)
    ends_at = inf if end is None else float(end)
    if duration is not None:
        ends_at = begins_at + duration
    if not 0.0 <= begins_at < ends_at:
        raise invalid("workload.start and end", (begins_at, ends_at), "0 or more, the end later")
    return begins_at, ends_at


def _read_source(source: str, table: Mapping[str, Any], folder: Path, *, whole: bool) -> Recorded:
    if source == "servegen":
        return _servegen(table["servegen"], folder)
    path = folder / _text(f"workload.{source}", table[source])
    if source == "rates":
        asked = {name: table[name] for name in _OF_A_PROCESS if name in table}
        return _checked_curve(replace(load_rates(path), **asked), table)
    most = None if whole else table.get("num_requests")  # a week has millions
    return load_trace(path, None if most is None else max(1, most))


def _checked_curve(curve: RateCurve, table: Mapping[str, Any]) -> RateCurve:
    """Refuse a process that no curve has, and columns that are no class's name."""
    if curve.process not in PROCESSES:
        raise invalid("workload.process", curve.process, f"one of {', '.join(PROCESSES)}")
    classes = table.get("classes")
    names = [each.get("name", "request") for each in classes] if classes else []
    for kind in curve.kinds:
        if kind and kind not in names:
            raise invalid("a column of workload.rates", kind, f"at, or a class: {', '.join(names)}")
    return curve


def _servegen(table: Any, folder: Path) -> ServeGen:
    refuse_others("workload.servegen", table, ("rates", "lengths", "start"))
    rates, lengths = (
        folder / _text(f"workload.servegen.{name}", table.get(name))
        for name in ("rates", "lengths")
    )
    start = number("workload.servegen.start", table.get("start", 0.0))
    require_between("workload.servegen.start", start, 0, 1e9)
    return load_servegen(rates, lengths).starting_at(start)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "a path")
    return value
