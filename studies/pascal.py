"""PASCAL: first answering tokens in the tail, readers' QoE, and what the phase boundary costs.

Eight instances of a 32B model on H100-96 with 72K tokens of KV each, host memory behind them.
All requests reason (log-normal, median 700, σ 1) and then answer (median 900, σ 0.6). Baselines:
fcfs and phase-blind round-robin by quanta, both placed by least KV. In the reasoning-heavy mix
every second request reasons for longer (median 2,700) and answers shortly (median 245), as in
Fig. 14.

A run is of a start: 1,000 requests in two to six minutes, which is less than the longest of them
stay. A steady run takes 35,000 requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from headway.class_metrics import TITLES
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.metrics import VIOLATION
from headway.presets import Preset
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from studies import compared
from studies.claims import Bar, Claim, PerSeed
from studies.compared import Compared, Expected, Quantity, judged
from studies.runs import (
    Finished,
    Job,
    Results,
    Row,
    arrivals,
    known,
    run,
    share_of,
    spec_of,
    with_policies,
)

PAPER = "pascal"
SCENARIO = "8 × Qwen-32B on H100-96, 72K tokens of KV"
CROWDED = "one instance full of reasoning, and an empty one from 40 s on"
_FREE_AT = 40.0
HEAVY = f"{SCENARIO}, half with long reasoning and short answers"
HEAVY_RATE = 4.5
RATES = (3.0, 5.0, 6.0, 7.0)
BUSY = 6.0
BOUNDARY_RATES = (5.0, BUSY, 7.5)
NUM_REQUESTS = 1000
_BIN = 256
_LEAST_OF_BIN = 5
_HOST_TOKENS = 400_000
_PACE = 0.1
FCFS, RR, OURS = "fcfs", "rr", "pascal"
STAYS, ALWAYS = "pascal without migration", "pascal without the adaptive rule"
FROM_FULL = "pascal, answers leave full units only"
LEAST_KV = "pascal, answers to the least KV"
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    OURS: {},
    STAYS: {"migrates": False},
    ALWAYS: {"adaptive": False},
    FROM_FULL: {"from_full": True},
    LEAST_KV: {"fewest": "kv"},
}


def _preset(system: str) -> Preset:
    if system in SYSTEMS:
        return with_policies("pascal", params={"placement": SYSTEMS[system]})
    params = {"dispatch": {"rule": "least-kv"}}
    return with_policies("vllm-like", params=params, batching=system)


def _requests(job: Job) -> Iterator[SimRequest]:
    rng = random.Random(job.seed)
    for number, at in arrivals(rng, job.rate, NUM_REQUESTS):
        is_heavy = job.scenario == HEAVY and number % 2 == 1
        reasoned, answered = ((7.9, 0.7), (5.5, 0.5)) if is_heavy else ((6.551, 1.0), (6.802, 0.6))
        reasoning = max(1, min(20_000, int(rng.lognormvariate(*reasoned))))
        answer = max(1, min(8_000, int(rng.lognormvariate(*answered))))
        prompt = max(1, int(rng.expovariate(1 / 200)))
        yield SimRequest(f"r{number}", at, prompt, reasoning + answer, reasoning)


def _crowd(seed: int) -> Iterator[SimRequest]:
    """Sixty requests that reason for long, within half a minute."""
    rng = random.Random(seed)
    for number, at in arrivals(rng, 2.0, 60):
        reasoning = 1500 + int(3000 * rng.random())
        yield SimRequest(f"r{number}", at, 100, reasoning + 500, reasoning)


def _second_instance(kind: InstanceSpec, cluster: SimCluster) -> None:
    """Start it when the first is full of reasoning."""
    cluster.kernel.after(_FREE_AT, partial(cluster.start_worker, kind, running=True))


def measure(job: Job) -> Row:
    """Run once."""
    profile = replace(load_profile("qwen-32b-h100-96"), host_capacity_tokens=_HOST_TOKENS)
    kind = InstanceSpec(Role.UNIFIED, profile)
    if job.scenario == CROWDED:
        spec = spec_of(_preset(job.system), Conditions(((kind, 1),), limits=UNLIMITED))
        watch = partial(_second_instance, kind)
        return _figures(run(spec, _crowd(job.seed), watch=watch, is_start=True))
    conditions = Conditions(
        ((kind, 8),),
        NetworkParams(profile.link_bytes_per_s),
        report_interval=2.0,
        limits=UNLIMITED,
    )
    spec = spec_of(_preset(job.system), conditions)
    return _figures(run(spec, _requests(job), is_start=True))


def _figures(finished: Finished) -> Row:
    records = finished.records
    blocked = [_blocked(r) for r in records]
    quality = [q for r in records if (q := r.qoe(_PACE)) is not None]
    figures = {
        **finished.by_class,
        "ttfat_p99": share_of(known(records, "ttfat"), 0.99),
        "blocked_p99": share_of(blocked, 0.99),
        "violations": sum(q < VIOLATION for q in quality) / len(quality),
        "tokens_per_s": sum(r.num_tokens for r in records) / finished.cluster.ended_at,
        "ttlt_p50": share_of(known(records, "ttlt"), 0.50),
        "ttlt_p99": share_of(known(records, "ttlt"), 0.99),
        "moves": float(finished.cluster.scheduler_core.status().counters.num_relocations),
    }
    for number, tail in _tails(records).items():
        figures[f"bin {number}"] = tail
    return figures


def _blocked(record: Record) -> float:
    """Return the seconds between the end of the reasoning and the first answering token."""
    last, first = record.instants(record.num_reasoning_tokens - 1)[:2]
    return float(first - last)


def _tails(records: Sequence[Record]) -> dict[int, float]:
    """Return the tail of TTFAT in each 256-token bin of reasoning length.

    As the paper takes it: the maximum of under 10 requests, else P90, from 20 on P95, and from 100
    on P99. Bins of under 5 requests are left out.
    """
    bins: dict[int, list[float]] = {}
    for record in records:
        if record.ttfat is not None:
            bins.setdefault(record.num_reasoning_tokens // _BIN, []).append(record.ttfat)
    return {number: tail(values) for number, values in bins.items() if len(values) >= _LEAST_OF_BIN}


def tail(values: Sequence[float]) -> float:
    """Return the tail of a bin, by the number of its requests."""
    steps = ((10, 1.0), (20, 0.90), (100, 0.95))
    return share_of(values, next((s for most, s in steps if len(values) < most), 0.99))


# --- the claims -----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Check every claim, over loads from light to overload."""
    main = (FCFS, RR, OURS)
    rates: dict[str, tuple[float, ...]]
    rates = {**dict.fromkeys(SYSTEMS, BOUNDARY_RATES), **dict.fromkeys(main, RATES)}
    rates[OURS] = (*RATES, *(rate for rate in BOUNDARY_RATES if rate not in RATES))
    jobs = [
        Job(SCENARIO, system, rate, seed)
        for system in (FCFS, RR, *SYSTEMS)
        for rate in rates[system]
        for seed in seeds
    ]
    jobs += [Job(HEAVY, system, HEAVY_RATE, seed) for system in main for seed in seeds]
    jobs += [Job(CROWDED, s, 0.0, seed) for s in (STAYS, OURS) for seed in seeds]
    results = Results.of(measure, jobs, num_processes)
    return [
        *_bins(results, seeds),
        *compared.claims(PAPER, [*_readers(), *_boundary()], _PLACES, results),
    ]


_PLACES = {name: name for name in (SCENARIO, HEAVY, CROWDED)}
_LOADS = (*((SCENARIO, rate) for rate in RATES), (HEAVY, HEAVY_RATE))


def _bins(results: Results, seeds: Sequence[int]) -> Iterator[Claim]:
    """Compare the tail of TTFAT in the best 256-token bin (Fig. 9, 10 and 16)."""
    papers = {SCENARIO: ("up to -61…-72 %", "up to -29…-33 %"), HEAVY: ("-70 %", "-13.9 %")}
    for at, rate in _LOADS:
        asked = (Bar(-0.61), Bar(-0.29)) if at == SCENARIO else (Bar(-0.70), Bar(-0.139))
        for before, bar, value in zip((FCFS, RR), asked, papers[at], strict=True):
            best = [_best_bin(results, at, before, rate, seed) for seed in seeds]
            theirs, ours = (PerSeed(values) for values in zip(*best, strict=True))
            yield judged(
                PAPER,
                "tail TTFAT in its best 256-token bin",
                f"{at}, {rate:g} requests/s; seconds",
                Expected(value, bar, _EMPTY if (at, rate) == _LOADS[0] else ""),
                (theirs, ours),
                before,
            )


def _best_bin(
    results: Results, at: str, before: str, rate: float, seed: int
) -> tuple[float, float]:
    """Return both tails of the bin with the greatest relative drop, of those that both have."""
    row, other = (results.rows[Job(at, system, rate, seed)] for system in (OURS, before))
    shared = [name for name in row if name.startswith("bin ") and name in other]
    best = min(shared, key=lambda name: (row[name] / other[name], name))
    return other[best], row[best]


_EMPTY = "where nothing queues there is no tail to cut"
_NONE_MORE = Bar(0.0, by_points=True)
_STRICT = "near saturation strict classes starve answers"
_GATHER = "answers gather where few reason, and their KV grows there"
_QUANTUM = "a first answering token falls in the first quantum and is rarely the one that waits"
_QOE, _VIOLATIONS = "answers with a QoE below 0.95", Quantity("violations", "share")


def _readers() -> Iterator[Compared]:
    """Compare what readers and both halves of reasoning felt (Fig. 11, 12 and 16)."""
    for place in _LOADS:
        fewer = "fewer than both baselines" if place[0] == SCENARIO else "like rr, fewer than fcfs"
        for before in (FCFS, RR):
            asked = Expected(fewer, _NONE_MORE, _STRICT)
            yield Compared(_QOE, place, _VIOLATIONS, (before, OURS), asked)
    for figure in ("short_ttfat_p99", "long_ttfat_p99", "lateness_p99"):
        for place in ((SCENARIO, BUSY), (HEAVY, HEAVY_RATE)):
            is_told = (place[0], figure) == (HEAVY, "long_ttfat_p99")
            asked = Expected("+6.8 %", Bar(0.068)) if is_told else Expected("-", Bar(0.0))
            yield Compared(TITLES[figure], place, Quantity(figure), (FCFS, OURS), asked)
    tokens = Quantity("tokens_per_s", "tokens/s")
    for before in (FCFS, RR):
        asked = Expected("within 3 %", Bar(-0.03, at_least=True))
        yield Compared("throughput", (SCENARIO, BUSY), tokens, (before, OURS), asked)


def _boundary() -> Iterator[Compared]:
    """Compare with answers that stay (Fig. 13), and with a rule that never keeps one (Fig. 15)."""
    blocked, short = Quantity("blocked_p99"), f"{TITLES['short_ttfat_p99']} by migration"
    of_blocking = Expected("27.39 s to near zero (Fig. 13)", _NONE_MORE, _QUANTUM)
    for rate in BOUNDARY_RATES:
        for claim, quantity, asked in (
            (_QOE, _VIOLATIONS, Expected("far fewer (Fig. 13)", _NONE_MORE, _GATHER)),
            (short, Quantity("short_ttfat_p99"), Expected("-", Bar(0.0))),
            ("P99 of blocking at the boundary", blocked, of_blocking),
        ):
            pair, beside = (STAYS, OURS), (FROM_FULL, LEAST_KV)
            yield Compared(claim, (SCENARIO, rate), quantity, pair, asked, beside)
        claim, asked = (
            f"{_QOE}, against answers to the least KV",
            Expected("-", _NONE_MORE, _GATHER),
        )
        yield Compared(claim, (SCENARIO, rate), _VIOLATIONS, (LEAST_KV, OURS), asked)
        fewer = Expected("7.45 to 0.69 % (Fig. 15)", Bar(-0.0676, by_points=True))
        for claim, quantity, asked in (
            (_QOE, _VIOLATIONS, fewer),
            ("median TTLT", Quantity("ttlt_p50"), Expected("-17 % (Fig. 15)", Bar(-0.167))),
            ("P99 TTLT", Quantity("ttlt_p99"), Expected("-8.8 % (Fig. 15)", Bar(-0.088))),
        ):
            yield Compared(claim, (SCENARIO, rate), quantity, (ALWAYS, OURS), asked)
    claim, asked = (
        "where the source is full of reasoning",
        Expected("27.39 s to near zero", Bar(-0.9)),
    )
    yield Compared(f"P99 of blocking {claim}", (CROWDED, 0.0), blocked, (STAYS, OURS), asked)
