"""TokenScale: SLO attainment over GPUs of every scaling policy, under bursts.

Every policy, and every variant of TokenScale, runs with the same list of headrooms, since
attainment alone is bought with GPUs. The points of one, attainment over mean GPUs, are its
frontier; frontiers are compared over the GPUs that both span. Beside them stands the same traffic
on unified replicas that stay. Where a token may take 100 ms the pool of decoders hardly shows, as
hardly any request misses that; so the parts are compared under 20 ms as well.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.cost.schema import Profile
from headway.policies import registry
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, Targets
from headway.presets import PRESETS, Preset
from headway.sim.autoscaling import SimAutoscaler
from headway.sim.cluster import SimCluster
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from studies import bursts
from studies.bursts import (
    MAIN,
    TIGHT,
    WORKLOADS,
    BurstWorkload,
    arrivals,
    needed,
    predicted,
)
from studies.claims import Bar, Claim, PerSeed, run_all
from studies.compared import WANTED, Expected, cheaper, judged
from studies.curves import Point, frontier, mean_over, shared_span, value_at
from studies.runs import Job, Results, Row, run, spec_of

PAPER = "tokenscale"
MAX_DECODE = 16
TTFT_SLOS = ((256, 0.25), (1024, 0.4), (1 << 30, 2.0))
HEADROOMS = (1.0, 0.85, 0.6, 0.4)
"""Planned share of every velocity or threshold."""
FEW_HEADROOMS = (1.0, 0.6)
DEFAULT = 0.85
BURST: Mapping[str, float] = MappingProxyType({"factor": 1.0, "chance": 0.5})
"""The detector's parameters: all above the mean, chance included, as in the paper's figure."""


@dataclass(frozen=True, slots=True)
class System:
    """Scaling policies of both pools, and TokenScale's other parts.

    ``routes``: TokenScale's routing and decode balance, else requests go to the instance with the
    fewest. ``accuracy``: share of requests whose output bucket the predictor names rightly.
    ``unified``: no pools and no scaling; at headroom 1 so many replicas, at less more.
    """

    prefill: str = PAPER
    decode: str = PAPER
    routes: bool = True
    fit: str = "least"
    num_convertible: int = 2
    accuracy: float = 0.85
    unified: int = 0


BASELINES = ("aibrix", "blitzscale", "distserve", "utilisation")
_DISTSERVE = "distserve"
ROUTED = "distserve, TokenScale's routing"
UNIFIED = "unified replicas"
PARTS = ("B+P", "B+P+D", "no convertible")
VARIANTS: Mapping[str, System] = {
    ROUTED: System(_DISTSERVE, _DISTSERVE, num_convertible=0),
    "B+P": System(decode=_DISTSERVE, routes=False, num_convertible=0),
    "B+P+D": System(routes=False, num_convertible=0),
    "no convertible": System(num_convertible=0),
    "1 convertible": System(num_convertible=1),
    "4 convertibles": System(num_convertible=4),
    "first fit": System(fit="first"),
    "predictor 100 %": System(accuracy=1.0),
    "predictor 60 %": System(accuracy=0.6),
    UNIFIED: System(routes=False, unified=5),
}
SYSTEMS: Mapping[str, System] = {
    PAPER: System(),
    **{name: System(name, name, routes=False, num_convertible=0) for name in BASELINES},
    **VARIANTS,
}


# --- a run ----------------------------------------------------------------------------------


def keeps(record: Record, tpot: float) -> bool:
    """Say whether a request keeps its limits: TTFT by prompt length, and TPOT."""
    if not record.finished or record.ttft is None:
        return False
    limit = next(limit for edge, limit in TTFT_SLOS if record.num_prompt_tokens <= edge)
    return record.ttft <= limit and (record.tpot is None or record.tpot <= tpot)


class Mixed(Scaling):
    """Prefillers by one policy, decoders by another."""

    name = "mixed"

    def __init__(self, prefill: Scaling, decode: Scaling) -> None:
        self._prefill = prefill
        self._decode = decode
        self.loads_live = decode.loads_live

    def begin(self, fleet: Fleet) -> None:
        """Tell both."""
        self._prefill.begin(fleet)
        self._decode.begin(fleet)

    def targets(self, rates: Rates | None, fleet: Fleet | None = None, *, now: float) -> Targets:
        """Return the prefillers that one wants, and all else from the other."""
        ours = self._prefill.targets(rates, fleet, now=now)
        return replace(self._decode.targets(rates, fleet, now=now), num_prefill=ours.num_prefill)


def _preset(system: System, profile: Profile) -> Preset:
    plain = PRESETS["vllm-like"]
    if not system.routes:
        return plain
    routing = MappingProxyType({"profile": profile, "fit": system.fit})
    return replace(
        plain,
        dispatch="tokenscale",
        placement="bucket-balance",
        params=MappingProxyType({"dispatch": routing}),
    )


def _scaling(name: str, system: System, workload: BurstWorkload, headroom: float) -> Scaling:
    params: dict[str, object] = {
        "max_prefill": 10,
        "max_decode": MAX_DECODE,
        "target_utilisation": headroom,
    }
    if name == PAPER:
        params |= {
            "profile": load_profile(workload.profile),
            "convertibles": system.num_convertible > 0,
            "burst_ratio": system.num_convertible / MAX_DECODE,
        }
    if name == _DISTSERVE:
        params |= dict(zip(("prefill_per_s", "decode_per_s"), workload.carried, strict=True))
    policy: Scaling = registry.make("scaling", name, **params)
    return policy


@dataclass(frozen=True, slots=True)
class _Ran:
    """``gpus``: the mean over the arrivals; ``history``: GPUs that run or start, by time."""

    records: Sequence[Record]
    gpus: float
    history: Sequence[Point]


def _ran(job: Job) -> _Ran:
    """Run once; the job's rate is the headroom.

    It is a run of a start: a minute, and the longest requests stay for over half of one.
    """
    workload, system = WORKLOADS[job.scenario], SYSTEMS[job.system]
    profile = load_profile(workload.profile)
    kinds = {role: InstanceSpec(role, profile) for role in Role}
    pools = [*zip((Role.PREFILL, Role.DECODE), workload.initial, strict=True)]
    if system.unified:
        pools = [(Role.UNIFIED, math.ceil(system.unified / job.rate))]
    conditions = Conditions(
        tuple((kinds[role], count) for role, count in pools),
        NetworkParams(profile.link_bytes_per_s),
        limits=UNLIMITED,
    )
    spec = spec_of(_preset(system, profile), conditions)
    if system.routes:
        gateway = replace(spec.gateway, burst="dual-signal", burst_params=BURST)
        spec = replace(spec, gateway=gateway)
    scalers = list[SimAutoscaler]()

    def watch(cluster: SimCluster) -> None:
        if system.unified:
            return
        policies = [
            _scaling(n, system, workload, job.rate) for n in (system.prefill, system.decode)
        ]
        policy = Mixed(*policies) if system.prefill != system.decode else policies[0]
        predict = partial(predicted, system.accuracy, profile, job.seed)
        scalers.append(SimAutoscaler(cluster, policy, kinds, predict=predict))

    ran = run(spec, arrivals(job.seed, workload), watch=watch, is_start=True)
    num_gpus = ran.cluster.gpu_seconds(bursts.SECONDS) / bursts.SECONDS
    history = [
        (at, float(gpus))
        for scaler in scalers
        for at, _, gpus in scaler.history
        if at <= bursts.SECONDS
    ]
    return _Ran(ran.records, num_gpus, history or [(0.0, num_gpus)])


def measure(job: Job) -> Row:
    """Return the share of requests that keep their SLO, mean GPUs, and requests lost.

    ``follows``: Pearson's r of the GPUs provided with those needed (Fig. 11).
    """
    ran, workload = _ran(job), WORKLOADS[job.scenario]
    need = needed(job.seed, workload)
    have = [value_at(ran.history, at) for at, _ in need]
    return {
        "attainment": statistics.fmean(keeps(r, workload.tpot) for r in ran.records),
        "gpus": ran.gpus,
        "lost": sum(not r.finished for r in ran.records),
        "follows": _correlation(have, [gpus for _, gpus in need]),
    }


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    is_flat = len(set(one)) == 1 or len(set(other)) == 1
    return 0.0 if is_flat else statistics.correlation(one, other)


# --- what is there over time --------------------------------------------------------------


def history(job: Job) -> Sequence[Point]:
    """Return the GPUs that run or start while requests arrive, by time."""
    return _ran(job).history


def provisioned(seed: int, num_processes: int) -> dict[str, Sequence[Point]]:
    """Return the history of every policy at one headroom."""
    systems = (PAPER, *BASELINES)
    jobs = [Job(MAIN, system, DEFAULT, seed) for system in systems]
    return dict(zip(systems, run_all(history, jobs, num_processes), strict=True))


# --- the claims -----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare frontiers with every baseline, on every workload, and TokenScale's parts."""
    plan = swept()
    jobs = [
        Job(at, system, headroom, seed)
        for at, (systems, headrooms) in plan.items()
        for system in systems
        for headroom in headrooms
        for seed in seeds
    ]
    results = Results.of(measure, jobs, num_processes)
    return [
        *(
            claim
            for at, (systems, _) in plan.items()
            for system in systems[1:]
            for claim in _frontiers(results, at, system, seeds)
        ),
        *(_follows(results, system) for system in BASELINES),
    ]


def swept() -> dict[str, tuple[tuple[str, ...], tuple[float, ...]]]:
    """Return systems and headrooms by workload; one without its traces is named and left out."""
    plan: dict[str, tuple[tuple[str, ...], tuple[float, ...]]]
    plan = {MAIN: ((PAPER, *BASELINES, *VARIANTS), HEADROOMS)}
    for at, workload in WORKLOADS.items():
        missing = [str(path) for path in workload.paths if not path.exists()]
        if missing:
            print(f"{PAPER}: {at} is left out: no {', '.join(missing)}", file=sys.stderr)
        elif at == TIGHT:
            plan[at] = ((PAPER, *PARTS), HEADROOMS)
        elif at != MAIN:
            plan[at] = ((PAPER, _DISTSERVE), FEW_HEADROOMS)
    return plan


_NO_LESS = Bar(0.0, at_least=True, by_points=True)


def _points(results: Results, at: str, system: str, seed: int) -> list[Point]:
    return frontier(
        (row["gpus"], row["attainment"])
        for job, row in results.rows.items()
        if (job.scenario, job.system, job.seed) == (at, system, seed)
    )


def _frontiers(results: Results, at: str, system: str, seeds: Sequence[int]) -> Iterator[Claim]:
    pairs = [[_points(results, at, name, seed) for name in (system, PAPER)] for seed in seeds]
    spans = [shared_span(*pair) for pair in pairs]
    theirs, ours = (
        PerSeed(tuple(mean_over(pair[n], *span) for pair, span in zip(pairs, spans, strict=True)))
        for n in (0, 1)
    )
    where, points = (
        WORKLOADS[at].name,
        "; ".join(_points_text(results, at, s) for s in (PAPER, system)),
    )
    paper = _PARTS.get(system, "-") if system in VARIANTS else "50…88 % to 80…96 %"
    low, high = (statistics.fmean(ends) for ends in zip(*spans, strict=True))
    area = judged(
        PAPER,
        f"mean attainment from {low:.1f} to {high:.1f} GPUs, {at}",
        f"{where}; share of requests",
        Expected(paper, _NO_LESS),
        (theirs, ours),
        system,
    )
    yield replace(area, note=f"{area.note}; {points}")
    yield _cost(at, system, pairs)


def _cost(at: str, system: str, pairs: Sequence[Sequence[Sequence[Point]]]) -> Claim:
    paper, most = ("-", 0.0) if system in VARIANTS else ("-4…-14 %", -0.04)

    def judge(theirs: PerSeed, ours: PerSeed) -> Claim:
        return judged(
            PAPER,
            f"GPUs for {WANTED:.0%} attainment, {at}",
            f"{WORKLOADS[at].name}; mean GPUs",
            Expected(paper, Bar(most)),
            (theirs, ours),
            system,
        )

    before, after = zip(*pairs, strict=True)
    return cheaper(judge, (system, PAPER), before, after)


def _points_text(results: Results, at: str, system: str) -> str:
    """Return a system's points over headrooms, means over seeds."""
    headrooms = sorted({job.rate for job in results.rows if job[:2] == (at, system)}, reverse=True)
    points = (
        f"{100 * results.sample(at, system, headroom, 'attainment').mean:.1f} % @ "
        f"{results.sample(at, system, headroom, 'gpus').mean:.1f}"
        for headroom in headrooms
    )
    return f"{system} {', '.join(points)}"


_PARTS: Mapping[str, str] = {
    "B+P": "each part adds (Fig. 15)",
    "B+P+D": "each part adds (Fig. 15)",
    "no convertible": "each part adds (Fig. 15)",
    "predictor 60 %": "costs little (Fig. 13)",
}


def _follows(results: Results, system: str) -> Claim:
    return judged(
        PAPER,
        "GPUs provided follow those needed (Pearson's r)",
        f"{WORKLOADS[MAIN].name}, headroom {DEFAULT:g}; r",
        Expected("closest (Fig. 11)", _NO_LESS),
        results.pair(MAIN, (system, PAPER), DEFAULT, "follows"),
        system,
    )
