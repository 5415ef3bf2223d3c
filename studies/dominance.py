"""Orders in every regime: does anybody pay for what others gain?

``cells`` says what the regimes are. Every system has its own best topology of the same GPUs, and
the best of some sizes of unified instances' passes. Loads are shares of what the plain deployment
carries in its best one. Figures are by class (``headway.class_metrics``).

A reader's request keeps its SLO if its QoE is at least 0.95 and it starts in time. A chat has 1 s
to its first token. A reasoning request has 2 s, and 0.05 s for each reasoning token, to its first
answering token. A long prompt of a trace has longer. A request that nobody reads keeps it if its
TTLT is at most 2 s and 0.1 s for each output token.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headway.class_metrics import READER_PACE, TITLES, begins_in_time
from headway.metrics import VIOLATION
from headway.presets import SCALED_BY_PROFILE
from headway.sim.records import Record
from headway.sim.spec import ClusterSpec
from studies.best import best_topologies, saturation
from studies.cells import CELLS, Cell, conditions, requests
from studies.claims import Bar, Claim, PerSeed, unanimous
from studies.compared import Expected, judged
from studies.runs import Finished, Job, Results, Row, run, spec_of
from studies.systems import ORDERS, OURS, PLAIN, RECENT, preset_of

PAPER = "dominance"
SYSTEMS = (PLAIN, *ORDERS, *RECENT, "uniboost", "pascal", OURS)
"""Systems that order requests. SBS, STAR and TokenScale leave the order to the plain one."""
BARS = ("chat_ttft", "short_ttfat", "long_ttfat", "lateness", "unread_slowdown")
WORSE = 0.02  # a P99 may be so much above that of the plain deployment
NOTHING = 0.1  # seconds; no user feels less
AS_GOOD = 0.002  # one request in 500
MOST_PREEMPTIONS = 0.3
_CONVERTIBLE = (OURS, "tokenscale")  # their routing knows convertible decoders


def systems_of(cell: Cell) -> Sequence[str]:
    """Return who is compared; TokenScale where a pool is scaled."""
    return SYSTEMS if cell.scaling is None else (*SYSTEMS[:-1], "tokenscale", OURS)


def cluster_of(system: str, cell: Cell, topology: str) -> ClusterSpec:
    """Return a system's cluster in a cell, scaled by the same policy for all.

    Decoders of a pool are convertible only where the system's routing knows of it.
    """
    given = conditions(cell, topology)
    if cell.scaling is not None:
        converts = {"convertibles": system in _CONVERTIBLE}
        given = given.but({"scaling": SCALED_BY_PROFILE}, {"scaling": converts})
    return spec_of(preset_of(system), given)


def measure(job: Job) -> Row:
    """Run once."""
    return measured(CELLS[job.scenario], job)


def measured(cell: Cell, job: Job) -> Row:
    """Run a job's system in a cell, at the job's rate in its topology."""
    spec = cluster_of(job.system, cell, job.topology)
    return figures(run(spec, requests(cell, job.seed, job.rate)), cell)


def figures(finished: Finished, cell: Cell) -> Row:
    """Return what users felt; GPUs: all GPU-seconds over those of the arrivals.

    ``served``: requests/s that ended while others arrived.
    """
    records, cluster = finished.records, finished.cluster
    arrivals = records[-1].arrival_at
    return {
        **finished.by_class,
        "attainment": statistics.fmean(keeps(record, cell) for record in records),
        "arrivals": arrivals,
        "served": sum((r.last_token_at or arrivals) < arrivals for r in records) / arrivals,
        "gpus": cluster.gpu_seconds(cluster.ended_at) / arrivals,
    }


def keeps(record: Record, cell: Cell) -> bool:
    """Return whether a request keeps its SLO."""
    if not record.is_read:
        return record.ttlt is not None and record.ttlt <= 2.0 + 0.1 * record.num_output_tokens
    allowed = cell.trace.allowed(record.num_prompt_tokens) if cell.trace else 0.0
    begins = begins_in_time(record.num_reasoning_tokens, record.ttft, record.ttfat, allowed)
    return begins and (record.qoe(READER_PACE) or 0.0) >= VIOLATION


# --- the verdict ----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare all systems in every cell."""
    return compare(PAPER, CELLS, seeds, num_processes)


def compare(
    paper: str, cells: Mapping[str, Cell], seeds: Sequence[int], num_processes: int
) -> list[Claim]:
    """Compare all systems in some cells, against the plain deployment and the best of the rest."""
    cells = present(paper, cells)
    rates = rates_of(cells, num_processes)
    places = {name: (rates[name], cell.set_ups) for name, cell in cells.items()}
    best = best_topologies(measure, places, _systems_at, num_processes)
    jobs = [
        Job(name, system, rates[name], seed, best[name, system])
        for name, cell in cells.items()
        for seed in seeds
        for system in systems_of(cell)
    ]
    results = Results.of(measure, jobs, num_processes)
    claims = []
    for name, cell in cells.items():
        claims += [
            *_attainment(results, name, rates[name], best),
            *_tails(results, name, rates[name]),
        ]
        claims.append(_preemptions(results, name, rates[name]))
        if cell.scaling is not None:
            claims.append(_gpus(results, name, rates[name]))
    return [replace(claim, paper=paper) for claim in claims]


def rates_of(cells: Mapping[str, Cell], num_processes: int) -> Mapping[str, float]:
    """Return the requests/s of each cell: its own, or its share of what the plain one carries.

    Cells that differ in their load alone have one saturation.
    """
    alike = {name: replace(cell, load=1.0) for name, cell in cells.items() if not cell.rate}
    firsts: dict[Cell, str] = {}
    for name, cell in alike.items():
        firsts.setdefault(cell, name)
    places = {name: cell.topologies for cell, name in firsts.items()}
    most = saturation(measure, places, num_processes)
    return {
        name: cell.rate or round(cell.load * most[firsts[alike[name]]], 3)
        for name, cell in cells.items()
    }


def _systems_at(name: str) -> Sequence[str]:
    return systems_of(CELLS[name])


def present(paper: str, cells: Mapping[str, Cell]) -> Mapping[str, Cell]:
    """Return the cells; one without its trace is named and left out."""
    there = {}
    for name, cell in cells.items():
        missing = cell.trace.missing if cell.trace else []
        if missing:
            names = ", ".join(map(str, missing))
            print(f"{paper}: {name} is left out: no {names}", file=sys.stderr)
        else:
            there[name] = cell
    return there


def _attainment(
    results: Results, cell: str, rate: float, best: Mapping[tuple[str, str], str]
) -> Iterator[Claim]:
    """Yield what ours keeps against the plain deployment, and against the best of all others."""
    systems = _systems_at(cell)
    other = results.best(cell, systems[:-1], rate, "attainment", most=True)
    note = attainments(results, cell, systems, rate, best)
    for against in dict.fromkeys((PLAIN, other)):
        row = judged(
            PAPER,
            f"{cell}: SLO attainment against {against}",
            f"{cell}, {rate:g} requests/s; share",
            Expected("at least that", Bar(-AS_GOOD, at_least=True, by_points=True)),
            results.pair(cell, (against, OURS), rate, "attainment"),
            against,
        )
        yield replace(row, note=f"{row.note}; {note}")


def attainments(
    results: Results,
    place: str,
    systems: Iterable[str],
    rate: float,
    best: Mapping[tuple[str, str], str],
) -> str:
    """Say the attainment of every system, and its topology."""
    return ", ".join(
        f"{s} {results.sample(place, s, rate, 'attainment').mean:.1%} ({best[place, s]})"
        for s in systems
    )


def _tails(results: Results, cell: str, rate: float) -> Iterator[Claim]:
    """Yield what each class pays or gains, against the plain deployment."""
    known = results.rows[next(job for job in results.rows if job.scenario == cell)]
    for name in (f"{bar}_p99" for bar in BARS):
        if name not in known:
            continue
        pair = results.pair(cell, (PLAIN, OURS), rate, name)
        asked = Expected(f"at most {WORSE:+.0%}", pays_nothing(pair[0]))
        yield judged(PAPER, f"{cell}: {TITLES[name]}", f"{cell}; P99", asked, pair, PLAIN)


def pays_nothing(before: PerSeed) -> Bar:
    """Return the most that a tail may change: by ``WORSE``, or by an amount that nobody feels."""
    return Bar(max(before.mean * WORSE, NOTHING), by_points=True)


def _preemptions(results: Results, cell: str, rate: float) -> Claim:
    before, after = results.pair(cell, (PLAIN, OURS), rate, "preemptions")
    return Claim(
        PAPER,
        f"{cell}: preemptions a request",
        f"{cell}; preemptions a request",
        f"under {MOST_PREEMPTIONS:g}",
        before,
        after,
        holds=unanimous([each < MOST_PREEMPTIONS for each in after.values]),
        note=f"{PLAIN} {before.mean:.2f}",
        asked=f"under {MOST_PREEMPTIONS:g} in every seed",
    )


def _gpus(results: Results, cell: str, rate: float) -> Claim:
    pair, asked = (
        results.pair(cell, (PLAIN, OURS), rate, "gpus"),
        Expected(f"at most {WORSE:+.0%}", Bar(WORSE)),
    )
    claim = judged(PAPER, f"{cell}: mean GPUs", f"{cell}; GPUs", asked, pair, PLAIN)
    each = (f"{s} {results.sample(cell, s, rate, 'gpus').mean:.1f}" for s in _systems_at(cell))
    return replace(claim, note=f"{claim.note}; {', '.join(each)}")
