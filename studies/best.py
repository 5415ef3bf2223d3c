"""Each system's best topology at equal GPUs, and the load that the plain one carries.

Both are found on a seed of their own, and figures are of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from studies.runs import Job, Results, Row
from studies.systems import PLAIN

Measure = Callable[[Job], Row]
TUNED = 1
"""The seed on which topologies are chosen and saturation is measured."""
_KEEPS_UP = 0.8  # of what is offered, as some stay beyond the end; less is saturated
_FIRST_RATE = 0.25  # requests/s of each instance


def saturation(
    measure: Measure, places: Mapping[str, Sequence[str]], num_processes: int
) -> Mapping[str, float]:
    """Return the requests/s that the plain deployment carries in its best topology, by place.

    ``places``: the topologies of each. Twice as much is offered until less than four fifths are
    served while it is (``served`` of a row).
    """
    most = dict.fromkeys(places, 0.0)
    left = [(p, t, _FIRST_RATE * _size(t)) for p, all_ in places.items() for t in all_]
    while left:
        jobs = [Job(place, PLAIN, rate, TUNED, topology) for place, topology, rate in left]
        results = Results.of(measure, jobs, num_processes)
        left = []
        for job in jobs:
            served = results.rows[job]["served"]
            most[job.scenario] = max(most[job.scenario], served)
            if served >= _KEEPS_UP * job.rate:
                left.append((job.scenario, job.topology, 2 * job.rate))
    return most


def _size(topology: str) -> int:
    return sum(int(part[:-1]) for part in topology.split("+"))


def best_topologies(
    measure: Measure,
    places: Mapping[str, tuple[float, Sequence[str]]],
    systems_of: Callable[[str], Sequence[str]],
    num_processes: int,
) -> Mapping[tuple[str, str], str]:
    """Return the topology in which each system keeps most SLOs, by place and system.

    ``places``: the rate and the topologies of each. Of equal ones the first counts.
    """
    jobs = [
        Job(place, system, rate, TUNED, topology)
        for place, (rate, all_) in places.items()
        for system in systems_of(place)
        for topology in all_
        if len(all_) > 1
    ]
    results = Results.of(measure, jobs, num_processes)
    best = {(p, s): all_[0] for p, (_, all_) in places.items() for s in systems_of(p)}
    kept: dict[tuple[str, str], float] = {}
    for job in jobs:
        key, share = (job.scenario, job.system), results.rows[job]["attainment"]
        if share > kept.get(key, -1.0):
            kept[key], best[key] = share, job.topology
    return best
