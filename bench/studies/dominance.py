"""Orders in every regime: does anybody pay for what others gain?

``cells`` says what the regimes are. A run has the arrivals of at least ten mean residence times.
Figures are by class (``headway.felt``).

A request keeps its SLO as in ``composition``; a long prompt of a trace has longer for its first
token. One that nobody reads keeps it if its TTLT is at most 2 s and 0.1 s for each output token.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from bench.studies.cells import CELLS, Cell, conditions, requests
from bench.studies.claims import Bar, Claim, PerSeed
from bench.studies.compared import judged
from bench.studies.composition import SINGLES, keeps_slo
from bench.studies.runs import Finished, Job, Results, Row, run, spec_of, with_policies
from headway.felt import TITLES
from headway.presets import PRESETS, SCALED_BY_PROFILE, Preset
from headway.sim.records import Record
from headway.sim.spec import ClusterSpec

PAPER = "dominance"
PLAIN, HEADWAY = "vllm-like", "headway"
CLOCKS = "clocks"
CHATS_FIRST, DEADLINE = "chats-first", "slo-deadline"
KNOB: Mapping[str, int] = MappingProxyType({"headway, 128": 128, "headway, 2048": 2048})
"""Our order with another number of tokens from which a request is long."""
OURS = (HEADWAY, *KNOB, CLOCKS)
SYSTEMS = (PLAIN, CHATS_FIRST, DEADLINE, *SINGLES, *OURS)
BARS = ("chat_ttft", "short_ttfat", "long_ttfat", "lateness", "unread_slowdown")
WORSE = 0.02  # a P99 may be so much above that of the plain deployment
NOTHING = 0.1  # seconds; no user feels less
AS_GOOD = 0.002  # one request in 500
MOST_PREEMPTIONS = 0.3
_CONVERTIBLE = (HEADWAY, "tokenscale")  # their routing knows convertible decoders


def preset_of(system: str) -> Preset:
    """Return the policies of a system."""
    if system in (CHATS_FIRST, DEADLINE):
        return with_policies(PLAIN, params={"dispatch": {"rule": "least-kv"}}, batching=system)
    if system == CLOCKS:
        return PRESETS[HEADWAY].but({"batching": system})
    if system in KNOB:
        return PRESETS[HEADWAY].but({}, {"batching": {"long_tokens": KNOB[system]}})
    return PRESETS[system]


def systems_of(cell: Cell) -> tuple[str, ...]:
    """Return who is compared; variants of ours only where requests are drawn."""
    return SYSTEMS if cell.is_plain else (PLAIN, CHATS_FIRST, DEADLINE, *SINGLES, HEADWAY)


def cluster_of(system: str, cell: Cell) -> ClusterSpec:
    """Return a system's cluster in a cell, scaled by the same policy for all.

    Decoders are convertible only where the system's routing knows of it.
    """
    given = conditions(cell)
    if cell.scaling is not None:
        converts = {"convertibles": system in _CONVERTIBLE}
        given = given.but({"scaling": SCALED_BY_PROFILE}, {"scaling": converts})
    return spec_of(preset_of(system), given)


def measure(job: Job) -> Row:
    """Run once; the job's rate is a factor on the cell's own."""
    cell = CELLS[job.scenario]
    finished = run(cluster_of(job.system, cell), requests(cell, job.seed, job.rate))
    return figures(finished, cell)


def figures(finished: Finished, cell: Cell) -> Row:
    """Return what users felt, and GPUs: all GPU-seconds over those of the arrivals."""
    records, cluster = finished.records, finished.cluster
    arrivals = records[-1].arrival_at
    return {
        **finished.by_class,
        "attainment": statistics.fmean(_keeps(record, cell) for record in records),
        "residence": statistics.fmean(record.ttlt or 0.0 for record in records),
        "arrivals": arrivals,
        "seconds": cluster.ended_at,
        "gpus": cluster.gpu_seconds(cluster.ended_at) / arrivals,
    }


def _keeps(record: Record, cell: Cell) -> bool:
    if record.is_read:
        trace = cell.trace
        return keeps_slo(record, trace.allowed(record.num_prompt_tokens) if trace else 0.0)
    return record.ttlt is not None and record.ttlt <= 2.0 + 0.1 * record.num_output_tokens


# --- the verdict ----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare all systems in every cell, against the plain deployment and the best of the rest."""
    cells = list(present())
    jobs = [
        Job(cell, system, 1.0, seed)
        for cell in cells
        for seed in seeds
        for system in systems_of(CELLS[cell])
    ]
    found = Results.of(measure, jobs, num_processes)
    claims = []
    for cell in cells:
        for ours in (s for s in systems_of(CELLS[cell]) if s in OURS):
            claims += [_attainment(found, cell, ours), *_tails(found, cell, ours)]
            claims.append(_preemptions(found, cell, ours))
        if CELLS[cell].scaling is not None:
            claims.append(_gpus(found, cell))
    return claims


def present() -> Iterator[str]:
    """Yield the cells; one without its trace is named and left out."""
    for name, cell in CELLS.items():
        missing = cell.trace.missing if cell.trace else []
        if missing:
            shown = ", ".join(map(str, missing))
            print(f"{PAPER}: {name} is left out: no {shown}", file=sys.stderr)
        else:
            yield name


def _attainment(found: Results, cell: str, ours: str) -> Claim:
    systems = systems_of(CELLS[cell])
    others = [s for s in systems if s not in OURS]
    best = found.best(cell, others, 1.0, "attainment", most=True)
    before, after = found.pair(cell, (best, ours), 1.0, "attainment")
    each = ", ".join(f"{s} {found.sample(cell, s, 1.0, 'attainment').mean:.1%}" for s in systems)
    claim = judged(
        PAPER,
        f"{cell}: SLO attainment of {ours} against the best other",
        f"{cell}; share",
        "at least the best other's",
        Bar(-AS_GOOD, at_least=True, by_points=True),
        before,
        after,
        best,
    )
    return replace(claim, note=f"{claim.note}; {each}")


def _tails(found: Results, cell: str, ours: str) -> Iterator[Claim]:
    """Yield what each class pays or gains, against the plain deployment."""
    known = found.rows[next(job for job in found.rows if job.scenario == cell)]
    for name in (f"{bar}_p99" for bar in BARS):
        if name not in known:
            continue
        before, after = found.pair(cell, (PLAIN, ours), 1.0, name)
        yield judged(
            PAPER,
            f"{cell}: {TITLES[name]}, {ours}",
            f"{cell}; P99",
            f"at most {WORSE:+.0%}",
            pays_nothing(before),
            before,
            after,
            PLAIN,
        )


def pays_nothing(before: PerSeed) -> Bar:
    """Return the most that a tail may change: by ``WORSE``, or by an amount that nobody feels."""
    return Bar(max(before.mean * WORSE, NOTHING), by_points=True)


def _preemptions(found: Results, cell: str, ours: str) -> Claim:
    before, after = found.pair(cell, (PLAIN, ours), 1.0, "preemptions")
    return Claim(
        PAPER,
        f"{cell}: preemptions a request, {ours}",
        f"{cell}; preemptions a request",
        f"under {MOST_PREEMPTIONS:g}",
        before,
        after,
        holds=after.mean < MOST_PREEMPTIONS,
        note=f"{PLAIN} {before.mean:.2f}",
    )


def _gpus(found: Results, cell: str) -> Claim:
    claim = judged(
        PAPER,
        f"{cell}: mean GPUs, {HEADWAY}",
        f"{cell}; GPUs",
        f"at most {WORSE:+.0%}",
        Bar(WORSE),
        *found.pair(cell, (PLAIN, HEADWAY), 1.0, "gpus"),
        PLAIN,
    )
    each = (f"{s} {found.sample(cell, s, 1.0, 'gpus').mean:.1f}" for s in systems_of(CELLS[cell]))
    return replace(claim, note=f"{claim.note}; {', '.join(each)}")
