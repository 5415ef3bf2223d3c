"""GPUs for 97 %: how many instances each system needs for the same recorded traffic.

Fleets of growing size serve the same windows of a trace. Every size has one split into prefill and
decode instances, the same for all systems. A system's attainment over its GPUs is a frontier, and
the GPUs for 97 % are interpolated on it, seed by seed. SLOs are those of ``dominance``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from bench.studies.cells import CHATS, REASONING, Cell, requests
from bench.studies.claims import Bar, Claim, PerSeed
from bench.studies.compared import WANTED, cheaper, gpus_for, judged
from bench.studies.composition import SINGLES
from bench.studies.curves import Point, frontier
from bench.studies.dominance import HEADWAY, PLAIN, cluster_of, figures
from bench.studies.runs import Job, Results, Row, run

PAPER = "fleet"
FEWER = 0.20
SYSTEMS = (PLAIN, *SINGLES, HEADWAY)


@dataclass(frozen=True, slots=True)
class GrowingFleet:
    """A trace at a rate, and the fleets that serve it: prefill and decode instances by size."""

    cell: Cell
    splits: tuple[tuple[int, int], ...]

    def of(self, num_gpus: int) -> Cell:
        """Return the cell with a fleet of that size."""
        split = next(each for each in self.splits if sum(each) == num_gpus)
        return replace(self.cell, instances=split)

    @property
    def sizes(self) -> list[int]:
        """GPUs, an instance each."""
        return [sum(split) for split in self.splits]


FLEETS: Mapping[str, GrowingFleet] = MappingProxyType(
    {
        "Azure conversation": GrowingFleet(
            replace(CHATS, rate=24.0, num_requests=1500), ((4, 3), (5, 3), (5, 4), (6, 4), (6, 5))
        ),
        "ServeGen": GrowingFleet(
            replace(REASONING, rate=1.6, num_requests=500), ((1, 6), (1, 7), (1, 8), (1, 10))
        ),
    }
)


def measure(job: Job) -> Row:
    """Run once; the job's rate is the number of GPUs."""
    cell = FLEETS[job.scenario].of(round(job.rate))
    return figures(run(cluster_of(job.system, cell), requests(cell, job.seed)), cell)


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare the GPUs of ours with those of the plain deployment and of the best single paper."""
    places = list(present())
    jobs = [
        Job(place, system, float(size), seed)
        for place in places
        for size in FLEETS[place].sizes
        for system in SYSTEMS
        for seed in seeds
    ]
    found = Results.of(measure, jobs, num_processes)
    return [claim for place in places for claim in _claims(found, place, seeds)]


def present() -> Iterator[str]:
    """Yield the places; one without its trace is named and left out."""
    for name, fleet in FLEETS.items():
        missing = fleet.cell.trace.missing if fleet.cell.trace else []
        if missing:
            shown = ", ".join(map(str, missing))
            print(f"{PAPER}: {name} is left out: no {shown}", file=sys.stderr)
        else:
            yield name


def _claims(found: Results, place: str, seeds: Sequence[int]) -> Iterator[Claim]:
    fleets = {s: [_frontier(found, place, s, seed) for seed in seeds] for s in SYSTEMS}
    best = min(SINGLES, key=lambda s: (gpus_for(fleets[s])[1], gpus_for(fleets[s])[0].mean))
    shown = "; ".join(_shown(found, place, s, gpus_for(fleets[s])) for s in SYSTEMS)
    for system in (PLAIN, best):
        judge = partial(_row, place, system)
        row = cheaper(judge, (system, HEADWAY), fleets[system], fleets[HEADWAY])
        yield replace(row, note=f"{row.note}; {shown}")


def _row(place: str, against: str, theirs: PerSeed, ours: PerSeed) -> Claim:
    return judged(
        PAPER,
        f"GPUs for {WANTED:.0%} attainment, {place}",
        f"{place} at {FLEETS[place].cell.rate:g} requests/s; GPUs",
        f"{-FEWER:+.0%}",
        Bar(-FEWER),
        theirs,
        ours,
        against,
    )


def _frontier(found: Results, place: str, system: str, seed: int) -> list[Point]:
    return frontier(
        (job.rate, row["attainment"])
        for job, row in found.rows.items()
        if (job.scenario, job.system, job.seed) == (place, system, seed)
    )


def _shown(found: Results, place: str, system: str, needed: tuple[PerSeed, int]) -> str:
    """Return a system's attainment by GPUs, means over seeds, and its GPUs for 97 %."""
    points = (
        f"{found.sample(place, system, float(size), 'attainment').mean:.1%} @ {size}"
        for size in FLEETS[place].sizes
    )
    gpus, num_missed = needed
    least = "over " if num_missed else ""
    return f"{system} {', '.join(points)}: {least}{gpus.mean:.2f} ± {gpus.spread:.2f}"
