"""UniBoost: tails of TTLT and TTFT, preemptions, and the regimes in which its order pays.

One instance: light tails with ample KV (Qwen-72B, 32 places), heavy tails with ample KV (Llama-70B,
48 places), heavy tails where KV is tight (100K tokens), and for the phases the paper's one GPU
(CodeLlama-34B). Chunk sizes, routers and replicas vary the first. SRPT knows all lengths.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.worker import InstanceSpec
from studies import compared
from studies.claims import Bar, Claim
from studies.compared import Compared, Expected, Quantity
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

PAPER = "uniboost"
SECONDS = {False: 4_400.0, True: 8_500.0}
"""Seconds of arrivals, by whether tails are heavy: ten lives of the longest requests."""
_MOST_OUTPUT = {False: 12_000, True: 32_000}
NUM_WARM_UP = 50
OURS = "uniboost"
_MEAN_PROMPT = 300
_HOST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class SetUp:
    """Instances that serve, and requests: ``heavy`` has log-normal outputs (median 1500, σ 1.1).

    Else outputs are exponential (mean 1500). ``kv_tokens`` and ``max_running`` are an instance's.
    ``router``: the rule that chooses one.
    """

    name: str
    profile: str
    max_running: int
    kv_tokens: int
    heavy: bool = False
    chunk_tokens: int = 0
    num_instances: int = 1
    router: str = "least-outstanding"


_LIGHT = SetUp("Qwen-72B, 32 places, light tail", "qwen-72b-tp4-a100", 32, 2_000_000)
_HEAVY = SetUp("70B, 48 places, heavy tail", "llama-70b-tp4-h100", 48, 2_000_000, heavy=True)
CHUNKS = {f"chunk {n}": n for n in (128, 512, 2048)}
ROUTERS = {f"4 × by {rule}": rule for rule in ("random", "round-robin", "join-shortest-queue")}
REPLICAS = {f"{n} ×": n for n in (2, 8)}
SET_UPS: Mapping[str, SetUp] = {
    "light": _LIGHT,
    "heavy": _HEAVY,
    "tight": replace(_HEAVY, name="70B, 100K tokens of KV, heavy tail", kv_tokens=100_000),
    "phases": SetUp("CodeLlama-34B on one H100, 33K of KV", "codellama-34b-h100", 256, 33_000),
    **{
        name: replace(_LIGHT, name=f"{_LIGHT.name}, {name}", chunk_tokens=tokens)
        for name, tokens in CHUNKS.items()
    },
    **{
        name: replace(_LIGHT, name=f"{name}, each {_LIGHT.name}", num_instances=4, router=rule)
        for name, rule in ROUTERS.items()
    },
    **{
        name: replace(_LIGHT, name=f"{name} {_LIGHT.name}", num_instances=number)
        for name, number in REPLICAS.items()
    },
}
RATES: Mapping[str, Sequence[float]] = {
    "light": (0.42, 0.46, 0.50),
    "heavy": (0.65,),
    "tight": (0.33, 0.36),
    "phases": (0.30, 0.36),
    **dict.fromkeys((*CHUNKS, *ROUTERS, *REPLICAS), (0.48,)),
}
"""Requests/s of each instance."""
PHASES = ("fcfs", "distboost", "uniboost-base", "uniboost-memguard", OURS)
FIXED = "gamma=0.01"
SYSTEMS: Mapping[str, Sequence[str]] = {
    "light": ("fcfs", "srpt", "sjf", "trail", OURS, FIXED),
    "heavy": ("fcfs", "srpt", OURS, FIXED),
    "tight": ("fcfs", "srpt", OURS, FIXED),
    "phases": PHASES,
    **dict.fromkeys((*CHUNKS, *ROUTERS, *REPLICAS), ("fcfs", OURS)),
}
SLIDER = (1e-4, 1e-3, 1e-1, 1.0)
"""γ, 1/s: from least attained service to first come, first served; ``FIXED`` lies between."""


def _requests(job: Job) -> Iterator[SimRequest]:
    rng, set_up = random.Random(job.seed), SET_UPS[job.scenario]
    rate = job.rate * set_up.num_instances
    for number, at in arrivals(rng, rate, round(rate * SECONDS[set_up.heavy])):
        drawn = rng.lognormvariate(7.313, 1.1) if set_up.heavy else rng.expovariate(1 / 1500)
        prompt = max(1, int(rng.expovariate(1 / _MEAN_PROMPT)))
        output = max(1, min(int(drawn), _MOST_OUTPUT[set_up.heavy]))
        yield SimRequest(f"r{number}", at, prompt, output)


def measure(job: Job) -> Row:
    """Run once. A system is a policy's name, or ``gamma=`` and a fixed γ for MemGuard.

    The job's rate is each instance's.
    """
    set_up = SET_UPS[job.scenario]
    name, _, gamma = job.system.partition("=")
    params: dict[str, Mapping[str, object]] = {"dispatch": {"rule": set_up.router}}
    if gamma:
        params["batching"] = {"gamma": float(gamma)}
    batching = "uniboost-memguard" if gamma else name
    estimation = "noisy-oracle" if batching == "trail" else "bucket-mean"
    preset = with_policies("vllm-like", params=params, batching=batching, estimation=estimation)
    own = load_profile(set_up.profile)
    profile = replace(
        own,
        kv_capacity_tokens=set_up.kv_tokens,
        host_capacity_tokens=_HOST_TOKENS,
        chunk_tokens=set_up.chunk_tokens or own.chunk_tokens,
    )
    conditions = Conditions(
        ((InstanceSpec(Role.UNIFIED, profile), set_up.num_instances),),
        max_running=set_up.max_running,
        report_interval=5.0,
        limits=UNLIMITED,
    )
    return _figures(run(spec_of(preset, conditions), _requests(job)))


def _figures(finished: Finished) -> Row:
    records = finished.records[NUM_WARM_UP:]
    ttlt, ttft = known(records, "ttlt"), known(records, "ttft")
    preemptions = [worker.core.preemptions for worker in finished.cluster.workers]
    num_ended = sum(sum(each.by_request.values()) for each in preemptions)
    return {
        **finished.by_class,
        "ttlt_mean": statistics.fmean(ttlt),
        "ttlt_p99": share_of(ttlt, 0.99),
        "ttlt_p999": share_of(ttlt, 0.999),
        "ttft_p50": share_of(ttft, 0.50),
        "ttft_p95": share_of(ttft, 0.95),
        "ttft_p99": share_of(ttft, 0.99),
        "tpot_p99": share_of(known(records, "tpot"), 0.99),
        "never_preempted": sum(each.by_request[0] for each in preemptions) / num_ended,
        "preemptions": sum(e.num_voluntary + e.num_forced for e in preemptions) / num_ended,
        "tokens_per_s": sum(r.num_tokens for r in finished.records) / finished.cluster.ended_at,
    }


# --- the claims -----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Check every claim, and the slider that γ is."""
    jobs = [
        Job(at, system, rate, seed)
        for at, systems in SYSTEMS.items()
        for system in systems
        for rate in RATES[at]
        for seed in seeds
    ]
    jobs += [Job("light", f"gamma={gamma:g}", 0.50, seed) for gamma in SLIDER for seed in seeds]
    results = Results.of(measure, jobs, num_processes)
    rows = (*_tails(), *_first_tokens(), *_phases(), *_costs(), *_slider(), *_deployments())
    places = {at: set_up.name for at, set_up in SET_UPS.items()}
    return compared.claims(PAPER, rows, places, results)


_REVERSES = "where KV is tight and tails are heavy, the few longest pay for SRPT, beyond P99"
_AGREE = "below saturation all orders agree"
_FULL = "places are full of long outputs: the longest prompts wait as under fcfs"
_FADE = "the 1 % that fade behind newcomers set this limit"
_MEAN = "the mean is best for an order that knows lengths, not for one by service alone"
_WHY = {("light", 0.42): _AGREE, ("light", 0.46): "", ("light", 0.50): ""}
_TTLT, _TTFT = Quantity("ttlt_p99"), Quantity("ttft_p95")


def _tails() -> Iterator[Compared]:
    """Compare tails of TTLT and slowdown with orders that know lengths, and with fcfs."""
    pair, beside = ("srpt", OURS), (FIXED, "fcfs")
    for at in ("light", "heavy", "tight"):
        for rate in RATES[at]:
            asked = Expected("-35…-50 %", Bar(-0.35), _WHY.get((at, rate), _REVERSES))
            yield Compared("P99 TTLT", (at, rate), _TTLT, pair, asked, beside)
    for name, place, figure in (
        ("P99.9 TTLT", ("tight", 0.36), "ttlt_p999"),
        ("P99 slowdown", ("light", 0.50), "slowdown_p99"),
        ("P99 slowdown", ("tight", 0.36), "slowdown_p99"),
    ):
        yield Compared(name, place, Quantity(figure, "-"), pair, Expected("-", Bar(0.0)), beside)
    for name, quantity, before, asked in (
        ("P99 TTLT", _TTLT, "sjf", Expected("below SJF", Bar(0.0))),
        ("P99 TTLT", _TTLT, "trail", Expected("below TRAIL", Bar(0.0))),
        (
            "mean TTLT",
            Quantity("ttlt_mean"),
            "trail",
            Expected("+19 % (its Table 2)", Bar(0.19), _MEAN),
        ),
    ):
        yield Compared(name, ("light", 0.50), quantity, (before, OURS), asked)


def _first_tokens() -> Iterator[Compared]:
    """Compare TTFT with fcfs, by γ-Ada and by a fixed γ."""
    for system in (OURS, FIXED):
        for place in (("light", 0.46), ("light", 0.50), ("heavy", 0.65), ("tight", 0.33)):
            asked = Expected("-34…-97 %", Bar(-0.34), _FULL)
            yield Compared(f"P95 TTFT by {system}", place, _TTFT, ("fcfs", system), asked)
        for name, quantity, value, most in (
            ("TTFT", Quantity("ttft_p99"), "2.9…8.7 × tighter", 1 / 2.9 - 1),
            ("TTLT", _TTLT, "1.7…4.3 × tighter", 1 / 1.7 - 1),
        ):
            claim = f"{name} limit that 99 % keep by {system} (Fig. 7)"
            asked = Expected(value, Bar(most), _FADE)
            yield Compared(claim, ("light", 0.46), quantity, ("fcfs", system), asked)


def _phases() -> Iterator[Compared]:
    """Compare each phase with the one before it (Fig. 6 and 8)."""
    steps = (
        ("uniboost-base", "halves P99 near the knee", -0.5),
        ("uniboost-memguard", "1.5–2 × lower", -0.33),
        (OURS, "lower", 0.0),
    )
    for rate in RATES["phases"]:
        place, asked = ("phases", rate), Expected("lower below", Bar(0.0))
        yield Compared("P99 TTLT", place, _TTLT, ("fcfs", "distboost"), asked)
        for before, (after, value, most) in zip(PHASES[1:], steps, strict=False):
            for name, quantity, bar in (
                ("P99 TTLT", _TTLT, Bar(most)),
                ("P95 TTFT", _TTFT, Bar(0.0)),
            ):
                claim, asked = f"{name} by {after}", Expected(value, bar)
                yield Compared(claim, place, quantity, (before, after), asked)
        yield Compared(
            "preemptions a request by MemGuard",
            place,
            Quantity("preemptions", "preemptions"),
            ("uniboost-base", "uniboost-memguard"),
            Expected("restarts bounded (Fig. 8)", Bar(0.0, by_points=True)),
            ("fcfs", OURS),
        )


def _costs() -> Iterator[Compared]:
    for place in (("light", 0.50), ("tight", 0.33), ("tight", 0.36)):
        why = "each arrival may take one credit where nothing else is free"
        asked = Expected("over 0.90 at ρ = 0.99", Bar(0.0, at_least=True, by_points=True), why)
        claim, share = "requests that were never preempted", Quantity("never_preempted", "share")
        yield Compared(claim, place, share, ("srpt", OURS), asked, (FIXED,))
    why = "arrivals set it, and the last request's end"
    asked, tokens = (
        Expected("+1.2 %", Bar(0.0, at_least=True), why),
        Quantity("tokens_per_s", "tokens/s"),
    )
    yield Compared("throughput", ("light", 0.50), tokens, ("fcfs", OURS), asked)


def _slider() -> Iterator[Compared]:
    """Compare fixed γ with fcfs: tails of TTLT, medians of TTFT."""
    for gamma in (*(f"gamma={g:g}" for g in SLIDER), FIXED):
        for name, quantity in (("P99 TTLT", _TTLT), ("P50 TTFT", Quantity("ttft_p50"))):
            claim, asked = f"{name} by {gamma}", Expected("below fcfs", Bar(0.0))
            yield Compared(claim, ("light", 0.50), quantity, ("fcfs", gamma), asked)


def _deployments() -> Iterator[Compared]:
    """Compare with fcfs over chunk sizes, routers and replicas (Tables A1 to A3)."""
    papers = {
        **dict.fromkeys(CHUNKS, ("tails gain at each chunk", "-")),
        **dict(zip(ROUTERS, (("-13.9 %", "-"), ("-13.5 %", "-"), ("-23.5 %", "-")), strict=True)),
        **dict.fromkeys(REPLICAS, ("-12.7…-24.2 %", "-8.7…-13.5 %")),
    }
    for at, (tail, first) in papers.items():
        for name, quantity, value in (
            ("P99 TTLT", _TTLT, tail),
            ("P95 TTFT", _TTFT, first),
            ("P99 TPOT", Quantity("tpot_p99"), "-60.5…-77.5 %" if at in ROUTERS else "-"),
        ):
            asked = Expected(value, Bar(0.0))
            yield Compared(name, (at, RATES[at][0]), quantity, ("fcfs", OURS), asked)
