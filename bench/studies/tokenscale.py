"""TokenScale: SLO attainment and GPUs of every scaling policy under bursts.

Llama-8B on A100 at 22 requests/s: a slow sine with on-off bursts three times as fast (2.3 s long on
average, 47 % of the time, as in Azure's conversation trace), lengths like that trace's. Each policy
runs at its defaults and with the headroom that TokenScale has, because attainment alone is bought
with GPUs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.studies.claims import Claim, run_all
from bench.studies.runs import Job, Results, Row, spec_of
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.policies import registry
from headway.presets import PRESETS, Preset
from headway.sim.autoscaling import SimAutoscaler
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.experiment import Conditions
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

PAPER = "tokenscale"
PROFILE = "llama-8b-a100"
RATE, SECONDS, DRAIN = 22.0, 150.0, 120.0
BURST_FACTOR, BURST_MEAN, BURST_SHARE = 3.0, 2.3, 0.47
SINE_PERIOD, SINE_SHARE = 60.0, 0.3
INITIAL = ((Role.PREFILL, 3), (Role.DECODE, 4))
LIMITS = MappingProxyType({"max_prefill": 10, "max_decode": 16})
HEADROOM = 0.7
BASELINES = ("aibrix", "blitzscale", "distserve", "utilisation")
TTFT_SLOS = ((256, 0.25), (1024, 0.4), (1 << 30, 2.0))
TPOT_SLO = 0.1


SCENARIOS = {"at its defaults": None, f"at {HEADROOM:g} of its thresholds": HEADROOM}
"""Planned share of every threshold; None: the policy's own."""


def arrivals(seed: int) -> Iterator[SimRequest]:
    """Yield requests of a Markov-modulated Poisson process on a slow sine."""
    rng = random.Random(seed)
    base = RATE / (1 - BURST_SHARE + BURST_SHARE * BURST_FACTOR)
    quiet_mean = BURST_MEAN * (1 - BURST_SHARE) / BURST_SHARE
    now, bursting, changes_at, number = 0.0, False, rng.expovariate(1 / quiet_mean), 0
    most = base * BURST_FACTOR * (1 + SINE_SHARE)
    while True:
        now += rng.expovariate(most)
        if now > SECONDS:
            return
        while changes_at < now:
            bursting = not bursting
            changes_at += rng.expovariate(1 / (BURST_MEAN if bursting else quiet_mean))
        wave = 1 + SINE_SHARE * math.sin(2 * math.pi * now / SINE_PERIOD)
        if rng.random() * most > base * wave * (BURST_FACTOR if bursting else 1.0):
            continue
        num_prompt = min(8192, max(8, round(rng.lognormvariate(math.log(800), 0.9))))
        num_output = min(1500, max(2, round(rng.lognormvariate(math.log(130), 0.9))))
        yield SimRequest(f"r{number}", now, num_prompt, num_output)
        number += 1


def keeps(record: Record) -> bool:
    """Say whether a request keeps its limits: TTFT by prompt length, and TPOT."""
    if not record.finished or record.ttft is None:
        return False
    limit = next(limit for edge, limit in TTFT_SLOS if record.num_prompt_tokens <= edge)
    return record.ttft <= limit and (record.tpot is None or record.tpot <= TPOT_SLO)


def _preset(system: str) -> Preset:
    if not system.startswith(PAPER):
        return PRESETS["vllm-like"]
    params = MappingProxyType({"dispatch": MappingProxyType({"profile": load_profile(PROFILE)})})
    return replace(PRESETS["vllm-like"], dispatch="tokenscale", params=params)


def _policy(job: Job) -> Any:
    name = PAPER if job.system.startswith(PAPER) else job.system
    params: dict[str, object] = dict(LIMITS)
    utilisation = SCENARIOS[job.scenario]
    if utilisation is not None:
        params["target_utilisation"] = utilisation
    if name == PAPER:
        params |= {"profile": load_profile(PROFILE), "convertibles": job.system == PAPER}
    return registry.make("scaling", name, **params)


@dataclass(frozen=True, slots=True)
class _Ran:
    """``gpu_seconds`` over the arrivals; ``history``: GPUs that run or start, by time."""

    records: Sequence[Record]
    num_requests: int
    gpu_seconds: float
    history: Sequence[tuple[float, float]]


def _ran(job: Job) -> _Ran:
    """Run once."""
    profile = load_profile(PROFILE)
    kinds = {role: InstanceSpec(role, profile) for role in Role}
    conditions = Conditions(
        tuple((kinds[role], count) for role, count in INITIAL),
        NetworkParams(profile.link_bytes_per_s),
    )
    spec = spec_of(_preset(job.system), conditions)
    if job.system.startswith(PAPER):
        burst = MappingProxyType({"factor": 1.0})
        spec = replace(spec, gateway=replace(spec.gateway, burst="dual-signal", burst_params=burst))
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, spec, records.append)
    scaler = SimAutoscaler(cluster, _policy(job), kinds)
    requests = list(arrivals(job.seed))
    cluster.feed(iter(requests))
    kernel.run(SECONDS)
    gpu_seconds = scaler.gpu_seconds
    history = [(at, float(num_gpus)) for at, _, num_gpus in scaler.history]
    kernel.run(SECONDS + DRAIN)
    return _Ran(records, len(requests), gpu_seconds, history)


def measure(job: Job) -> Row:
    """Return a run's share of requests that keep their SLO, mean GPUs, and requests lost."""
    ran = _ran(job)
    return {
        "attainment": sum(map(keeps, ran.records)) / ran.num_requests,
        "gpus": ran.gpu_seconds / SECONDS,
        "lost": ran.num_requests - sum(r.finished for r in ran.records),
    }


# --- what is there over time --------------------------------------------------------------


def history(job: Job) -> Sequence[tuple[float, float]]:
    """Return the GPUs that run or start while requests arrive, by time."""
    return _ran(job).history


def provisioned(seed: int, num_processes: int) -> dict[str, Sequence[tuple[float, float]]]:
    """Return the history of every policy at its defaults."""
    systems, scenario = (PAPER, *BASELINES), next(iter(SCENARIOS))
    jobs = [Job(scenario, system, RATE, seed) for system in systems]
    found = run_all(history, jobs, num_processes)
    return dict(zip(systems, found, strict=True))


def needed(seed: int, width: float = 2.0) -> list[tuple[float, float]]:
    """Return the GPUs for what arrives in each ``width`` seconds (equations 2, 3, no headroom)."""
    profile = load_profile(PROFILE)
    bins = [0.0] * math.ceil(SECONDS / width)
    for request in arrivals(seed):
        num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
        bucket = profile.buckets.of(num_prompt, float(num_output))
        instance_seconds = num_prompt / profile.prefill_velocity()
        instance_seconds += (num_prompt + num_output) / profile.decode_velocity(bucket)
        bins[int(request.arrival_at / width)] += instance_seconds * profile.num_gpus / width
    return [(place * width, gpus) for place, gpus in enumerate(bins)]


# --- the claims -----------------------------------------------------------------------


_WHERE = f"Llama-8B on A100, {RATE:g} requests/s in bursts"


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare attainment and GPUs with every baseline, at defaults and at like headroom."""
    others = (f"{PAPER}, no convertible", *BASELINES)
    jobs = [Job(at, s, RATE, seed) for at in SCENARIOS for s in (PAPER, *others) for seed in seeds]
    found = Results.of(measure, jobs, num_processes)
    return [c for at in SCENARIOS for system in others for c in _claims(found, at, system)]


def _claims(found: Results, at: str, system: str) -> Iterator[Claim]:
    before, after = found.pair(at, (system, PAPER), RATE, "attainment")
    theirs, ours = found.pair(at, (system, PAPER), RATE, "gpus")
    is_own = system.startswith(PAPER)
    gained, saved = after.mean - before.mean, ours.mean / theirs.mean - 1
    yield Claim(
        PAPER,
        f"SLO attainment against {system} {at}",
        f"{_WHERE}; share of requests",
        "50…88 % to 80…96 %" if not is_own else "-",
        before,
        after,
        holds=gained > 0,
        note=f"{100 * gained:+.0f} points at {saved:+.0%} GPUs",
    )
    yield Claim(
        PAPER,
        f"GPUs against {system} {at}",
        f"{_WHERE}; mean GPUs",
        "-4…-14 %" if not is_own else "-",
        theirs,
        ours,
        holds=saved <= -0.04,
        note="" if saved <= -0.04 else "it plans with 0.7 of every velocity, and for the burst",
    )
