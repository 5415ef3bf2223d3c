"""A plan's load: requests at instants that are known, or sessions in a closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from headway.errors import invalid
from headway.sim.clients import SimRequest
from headway.sim.records import Record
from headway.sim.sessions import SessionLoad
from headway.sim.workload import Workload
from headway.workload.session import Session, first_of

Load = Sequence[SimRequest] | SessionLoad


def num_requests(load: Load) -> int:
    """Return how many requests it has, all turns of sessions counted."""
    return load.num_requests if isinstance(load, SessionLoad) else len(load)


def faster(load: Load, factor: float) -> Load:
    """Return the same requests in 1/``factor`` of the time; of sessions, their starts."""
    if isinstance(load, SessionLoad):
        return load.faster(factor)
    return [replace(r, arrival_at=r.arrival_at / factor) for r in load]


def rate_of(load: Load) -> float:
    """Return requests a second from the first to the last, or starts of sessions."""
    if isinstance(load, SessionLoad):
        instants = load.starts
    else:
        instants = [request.arrival_at for request in load]
    span = instants[-1] - instants[0]
    return (len(instants) - 1) / span if span > 0 else float("inf")


def unit_of(load: Load) -> str:
    """Return what ``rate_of`` counts, for people."""
    return "sessions/s" if isinstance(load, SessionLoad) else "requests/s"


def in_order(load: Load, records: Sequence[Record]) -> Sequence[Record | None]:
    """Return the records by arrival, None for a request that never ended."""
    if isinstance(load, SessionLoad):
        found: list[Record | None] = [*sorted(records, key=lambda r: (r.arrival_at, r.request_id))]
        return found + [None] * (load.num_requests - len(found))
    by_id = {record.request_id: record for record in records}
    return [by_id.get(request.request_id) for request in load]


def different_loads(workload: Workload, num_seeds: int, most: int) -> list[Load]:
    """Return the first requests of each seed; seeds that give the same requests count once.

    A request's shared prefix is left out, unless sessions share theirs. HeadwayError for fewer
    than two requests, or sessions.
    """
    loads: list[Load] = []
    for seed in range(1, num_seeds + 1):
        load = _first_of(workload, seed, most)
        number = len(load.starts) if isinstance(load, SessionLoad) else len(load)
        if number < 2:
            limit = "at least 2: a plan needs a load, which lasts from the first to the last"
            name = "the number of " + unit_of(load).partition("/")[0]
            raise invalid(name, number, limit)
        if load not in loads:
            loads.append(load)
    return loads


def _first_of(workload: Workload, seed: int, most: int) -> Load:
    load = workload.load(seed)
    if not isinstance(load, SessionLoad):
        return [replace(each, prefix_hashes=()) for each in islice(load, most)]
    num_tops = len(load.starts)
    fitting = (n for n in range(num_tops, 0, -1) if _num_turns(first_of(load.sessions, n)) <= most)
    kept = next(fitting, 0)
    return load if kept == num_tops else replace(load, sessions=first_of(load.sessions, kept))


def _num_turns(sessions: Sequence[Session]) -> int:
    return sum(len(each.turns) for each in sessions)
