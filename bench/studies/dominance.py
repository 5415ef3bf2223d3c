"""Orders of one worker in every regime: does anybody pay for what others gain?

One prefill instance and one decode instance of Qwen-32B on H100-96, with 72K tokens of KV. Each
cell changes one thing: load, lengths, bursts, classes, KV or places. A run has the arrivals of at
least ten mean residence times. Figures are by class (``headway.felt``).

A request keeps its SLO as in ``composition``. One that nobody reads keeps it if its TTLT is at
most 2 s and 0.1 s for each output token.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

from bench.studies.claims import Bar, Claim, PerSeed
from bench.studies.compared import judged
from bench.studies.composition import SINGLES, keeps_slo
from bench.studies.runs import Job, Results, Row, run, spec_of, with_policies
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.felt import TITLES
from headway.presets import PRESETS, Preset
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.prompts import HASHED_TOKENS
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import Bursts

PAPER = "dominance"
PLAIN, HEADWAY = "vllm-like", "headway"
CLOCKS = "clocks"
CHATS_FIRST, DEADLINE = "chats-first", "slo-deadline"
KNOB: Mapping[str, int] = MappingProxyType({"headway, 128": 128, "headway, 2048": 2048})
"""Our order with another number of tokens from which a request is long."""
OURS = (HEADWAY, *KNOB, CLOCKS)
SYSTEMS = (PLAIN, CHATS_FIRST, DEADLINE, *SINGLES, *OURS)
NUM_REQUESTS = 600
SATURATION = 1.2  # requests/s of the mixed cells whose tokens the plain deployment just generates
BARS = ("chat_ttft", "short_ttfat", "long_ttfat", "lateness", "unread_slowdown")
WORSE = 0.02  # a P99 may be so much above that of the plain deployment
NOTHING = 0.1  # seconds; no user feels less
AS_GOOD = 0.002  # one request in 500
MOST_PREEMPTIONS = 0.3
_HOST_TOKENS = 400_000
_PREFIXES, _PREFIX_BLOCKS = 4, 2  # blocks of 512 tokens


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal: its median, in tokens, and sigma; ``most`` tokens."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: random.Random) -> int:
        """Draw a length of 1 or more."""
        value = int(self.median * rng.lognormvariate(0.0, self.sigma))
        return max(1, min(self.most, value))


@dataclass(frozen=True, slots=True)
class Cell:
    """A regime.

    ``rate``: requests/s. ``reasons``, ``unread`` and ``shared`` are shares of all requests; shared
    prompts begin with one of a few. ``kv_tokens`` and ``max_running`` are those of a decode
    instance.
    """

    rate: float
    reasons: float = 0.4
    unread: float = 0.0
    shared: float = 0.0
    bursts: Bursts | None = None
    reasoning: Lengths = Lengths(700, 1.0, 16_000)
    kv_tokens: int = 72_000
    max_running: int = 0
    num_requests: int = NUM_REQUESTS


TRIPLE = Bursts(factor=3.0, length=10.0, share=0.25)
TENFOLD = Bursts(factor=10.0, length=10.0, share=0.1)
LONG = Lengths(8_000, 0.7, 30_000)

CELLS: Mapping[str, Cell] = MappingProxyType(
    {
        **{f"mixed, {load:.0%}": Cell(load * SATURATION) for load in (0.5, 0.8, 1.0, 1.2, 1.5)},
        "bursts × 3": Cell(0.9 * SATURATION, bursts=TRIPLE),
        "bursts × 10": Cell(0.8 * SATURATION, bursts=TENFOLD),
        "long outputs": Cell(0.12, reasoning=LONG, num_requests=300),
        "chats only": Cell(4.5, reasons=0.0, num_requests=1500),
        "reasoning only": Cell(0.55, reasons=1.0, num_requests=400),
        "tight KV": Cell(0.45, kv_tokens=28_000, num_requests=400),
        "few places": Cell(0.9, max_running=24),
        "shared prefixes": Cell(SATURATION, shared=0.8),
        "half unread": Cell(SATURATION, unread=0.5),
        "tight KV, half unread": Cell(0.45, unread=0.5, kv_tokens=28_000, num_requests=400),
    }
)


def preset_of(system: str) -> Preset:
    """Return the policies of a system."""
    if system in (CHATS_FIRST, DEADLINE):
        return with_policies(PLAIN, params={"dispatch": {"rule": "least-kv"}}, batching=system)
    if system == CLOCKS:
        return PRESETS[HEADWAY].but({"batching": system})
    if system in KNOB:
        return PRESETS[HEADWAY].but({}, {"batching": {"long_tokens": KNOB[system]}})
    return PRESETS[system]


def requests(cell: Cell, seed: int, load: float = 1.0) -> Iterator[SimRequest]:
    """Yield a cell's requests by arrival."""
    rng, now = random.Random(seed), 0.0
    rate = cell.rate * load
    gaps = cell.bursts.gaps(rate, rng) if cell.bursts else iter(lambda: rng.expovariate(rate), None)
    for number, gap in enumerate(islice(gaps, cell.num_requests)):
        now += gap
        yield _request(cell, rng, number, now)


def _request(cell: Cell, rng: random.Random, number: int, at: float) -> SimRequest:
    prompt = Lengths(493, 1.0, 8192).draw(rng)
    is_read = rng.random() >= cell.unread
    hashes: tuple[int, ...] = ()
    if cell.shared and rng.random() < cell.shared:
        prompt, first = prompt + _PREFIX_BLOCKS * HASHED_TOKENS, rng.randrange(_PREFIXES)
        hashes = tuple(range(first * _PREFIX_BLOCKS, (first + 1) * _PREFIX_BLOCKS))
    if rng.random() < cell.reasons:
        reasoning = cell.reasoning.draw(rng)
        output = reasoning + Lengths(403, 0.6, 4000).draw(rng)
        name = f"reasoning-{number}"
        return SimRequest(name, at, prompt, output, reasoning, hashes, is_read)
    answer = Lengths(299, 0.8, 4000).draw(rng)
    return SimRequest(f"chat-{number}", at, prompt, answer, 0, hashes, is_read)


def conditions(cell: Cell) -> Conditions:
    """Return the same GPUs for all systems."""
    profile = replace(load_profile("qwen-32b-h100-96"), host_capacity_tokens=_HOST_TOKENS)
    prefill = replace(profile, chunk_tokens=4096)
    decode = replace(profile, kv_capacity_tokens=cell.kv_tokens)
    return Conditions(
        ((InstanceSpec(Role.PREFILL, prefill), 1), (InstanceSpec(Role.DECODE, decode), 1)),
        NetworkParams(profile.link_bytes_per_s),
        max_running=cell.max_running,
        limits=UNLIMITED,
    )


def measure(job: Job) -> Row:
    """Run once; the job's rate is a factor on the cell's own."""
    cell = CELLS[job.scenario]
    spec = spec_of(preset_of(job.system), conditions(cell))
    finished = run(spec, requests(cell, job.seed, job.rate))
    records = finished.records
    return {
        **finished.by_class,
        "attainment": statistics.fmean(_keeps(record) for record in records),
        "residence": statistics.fmean(record.ttlt or 0.0 for record in records),
        "arrivals": records[-1].arrival_at,
        "seconds": finished.cluster.ended_at,
    }


def _keeps(record: Record) -> bool:
    if record.is_read:
        return keeps_slo(record)
    return record.ttlt is not None and record.ttlt <= 2.0 + 0.1 * record.num_output_tokens


# --- the verdict ----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare all systems in every cell, against the plain deployment and the best of the rest."""
    jobs = [Job(cell, system, 1.0, s) for cell in CELLS for s in seeds for system in SYSTEMS]
    found = Results.of(measure, jobs, num_processes)
    claims = []
    for cell in CELLS:
        for ours in OURS:
            claims += [_attainment(found, cell, ours), *_tails(found, cell, ours)]
            claims.append(_preemptions(found, cell, ours))
    return claims


def _attainment(found: Results, cell: str, ours: str) -> Claim:
    others = [s for s in SYSTEMS if s not in OURS]
    best = found.best(cell, others, 1.0, "attainment", most=True)
    before, after = found.pair(cell, (best, ours), 1.0, "attainment")
    each = ", ".join(f"{s} {found.sample(cell, s, 1.0, 'attainment').mean:.1%}" for s in SYSTEMS)
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
