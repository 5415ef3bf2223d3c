"""A plan's load: requests at instants that are known, or sessions in a closed loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

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
        by_arrival: list[Record | None] = [
            *sorted(records, key=lambda r: (r.arrival_at, r.request_id))
        ]
        return by_arrival + [None] * (load.num_requests - len(by_arrival))
    by_id = {record.request_id: record for record in records}
    return [by_id.get(request.request_id) for request in load]


def different_loads(workload: Workload, num_seeds: int, most: int) -> list[Load]:
    """Return ``most`` requests of each seed; seeds that give the same requests count once.

    They are the first ones that are drawn, or the busiest stretch of a recording.

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


class Stretch(NamedTuple):
    """Requests of a recording that follow each other, the first at 0, and where they are from.

    ``began_at``: the first one's instant in the recording, s; ``num_recorded`` requests in it come
    at ``mean_rate``.
    """

    requests: Sequence[SimRequest]
    began_at: float
    num_recorded: int
    mean_rate: float

    def sentence(self) -> str:
        """Return which part it is, as a sentence; "" for all of the recording."""
        if len(self.requests) == self.num_recorded:
            return ""
        ended_at = self.began_at + self.requests[-1].arrival_at
        return (
            f"planned for the busiest {len(self.requests)} of {self.num_recorded} requests: "
            f"{rate_of(self.requests):.2f}/s from {self.began_at:.0f} s to {ended_at:.0f} s; "
            f"all of them come at {self.mean_rate:.2f}/s (--requests plans for more)"
        )


def busiest(recorded: Iterable[SimRequest], most: int) -> Stretch:
    """Return the ``most`` consecutive requests that come in the shortest time, the earliest such.

    All of them where there are no more.
    """
    every = list(recorded)
    starts = range(max(0, len(every) - most) + 1)
    last = min(most, len(every)) - 1
    begin = min(starts, key=lambda n: every[n + last].arrival_at - every[n].arrival_at, default=0)
    stretch = every[begin : begin + most]
    origin = stretch[0].arrival_at if stretch and len(stretch) < len(every) else 0.0
    shifted = [replace(each, arrival_at=each.arrival_at - origin) for each in stretch]
    mean_rate = rate_of(every) if len(every) > 1 else 0.0
    return Stretch(shifted, origin, len(every), mean_rate)


def _first_of(workload: Workload, seed: int, most: int) -> Load:
    load = workload.load(seed)
    if not isinstance(load, SessionLoad):
        asked = islice(load, most) if workload.trace is None else busiest(load, most).requests
        return [replace(each, prefix_hashes=()) for each in asked]
    num_tops = len(load.starts)
    fitting = (n for n in range(num_tops, 0, -1) if _num_turns(first_of(load.sessions, n)) <= most)
    kept = next(fitting, 0)
    return load if kept == num_tops else replace(load, sessions=first_of(load.sessions, kept))


def _num_turns(sessions: Sequence[Session]) -> int:
    return sum(len(each.turns) for each in sessions)
