"""The five papers as one pipeline, compared with each alone and a plain deployment, on equal GPUs.

There are two prefill instances of two DP units and eight decode instances: Qwen-32B on H100-96,
with 72K tokens of KV and host memory behind them. 40 % of the requests reason. Arrivals come in
bursts of three times the rate.

A request keeps its SLO if its QoE is at least 0.95 and it starts in time. A chat has 1 s to its
first token. A reasoning request has 2 s, and 0.05 s for each reasoning token, to its first
answering token.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from bench.studies.claims import Bar, Claim, PerSeed
from bench.studies.compared import judged
from bench.studies.runs import (
    Finished,
    Job,
    Results,
    Row,
    known,
    run,
    share_of,
    spec_of,
)
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.felt import READER_PACE, TITLES, begins_in_time
from headway.metrics import VIOLATION
from headway.presets import PRESETS, Preset
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from headway.workload.arrivals import Bursts

PAPER = "composition"
SCENARIO = "2 × 2 prefill units, 8 decode, bursts × 3"
NUM_REQUESTS = 1500
SATURATION = 11.7  # requests/s whose tokens the plain deployment just generates (measured at 40/s)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.1, 1.2)
BUSY = tuple(round(SATURATION * share, 3) for share in (0.85, 1.0, 1.1, 1.2))
SINGLES = ("sbs", "uniboost", "star", "pascal", "tokenscale")
PLAIN, OURS = "vllm-like", "headway"
_ALL = 0.995  # where nearly all keep their SLO, a few requests of thousands lead nowhere
_HOST_TOKENS = 400_000
BURSTS = Bursts(factor=3.0, length=10.0, share=0.25)
STAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "without 2 (prefill)": {"dispatch": "immediate", "packing": "round-robin"},
        "without 3 (decode placement)": {"placement": "least-kv"},
        "without 4 (order)": {"batching": "fcfs"},
        "without 5 (moves)": {"rescheduling": "none"},
    }
)


def preset_of(system: str) -> Preset:
    """Return a preset by name, or ours without one of its stages."""
    if system not in STAGES:
        return PRESETS[system]
    ours, plain = PRESETS[OURS], PRESETS[PLAIN]
    changed = replace(ours, **STAGES[system])  # type: ignore[arg-type]  # names of policies
    kept = {q: p for q, p in ours.params.items() if q not in STAGES[system]}
    given = {q: p for q, p in plain.params.items() if q in STAGES[system]}
    return replace(changed, params=MappingProxyType({**kept, **given}))


def requests(rate: float, seed: int, num_requests: int | None = None) -> Iterator[SimRequest]:
    """Yield on-off bursts whose mean over everything is ``rate``."""
    rng, now = random.Random(seed), 0.0
    for number, gap in enumerate(islice(BURSTS.gaps(rate, rng), num_requests or NUM_REQUESTS)):
        now += gap
        yield _request(rng, number, now)


def _request(rng: random.Random, number: int, at: float) -> SimRequest:
    prompt = max(1, min(8192, int(rng.lognormvariate(6.2, 1.0))))
    if rng.random() < 0.4:
        reasoning = max(1, min(16_000, int(rng.lognormvariate(6.551, 1.0))))
        answer = max(1, min(4_000, int(rng.lognormvariate(6.0, 0.6))))
        return SimRequest(f"reasoning-{number}", at, prompt, reasoning + answer, reasoning)
    answer = max(1, min(4_000, int(rng.lognormvariate(5.7, 0.8))))
    return SimRequest(f"chat-{number}", at, prompt, answer)


def conditions() -> Conditions:
    """Return the same GPUs for all."""
    decode = replace(load_profile("qwen-32b-h100-96"), host_capacity_tokens=_HOST_TOKENS)
    prefill = replace(decode, num_units=2, chunk_tokens=4096, num_gpus=2)
    return Conditions(
        ((InstanceSpec(Role.PREFILL, prefill), 2), (InstanceSpec(Role.DECODE, decode), 8)),
        NetworkParams(decode.link_bytes_per_s),
        limits=UNLIMITED,
    )


def measure(job: Job) -> Row:
    """Run once."""
    spec = spec_of(preset_of(job.system), conditions())
    return figures(run(spec, requests(job.rate, job.seed)))


def figures(finished: Finished) -> Row:
    """Return what users felt, over all requests; seconds and shares."""
    records = finished.records
    quality = [r.qoe(READER_PACE) or 0.0 for r in records]
    times = {name: known(records, name) for name in ("ttft", "ttfat", "ttlt", "tpot")}
    return {
        **{f"{name}_p50": share_of(values, 0.50) for name, values in times.items()},
        **{f"{name}_p99": share_of(values, 0.99) for name, values in times.items()},
        "qoe": statistics.fmean(quality),
        "attainment": statistics.fmean(keeps_slo(r) for r in records),
        **finished.by_class,
        "gpu_hours": 12 * finished.cluster.ended_at / 3600,
    }


def keeps_slo(record: Record, allowed: float = 0.0) -> bool:
    """Return whether a reader's request started in time and was paced as it is read.

    ``allowed``: seconds that its first token may take longer.
    """
    begins = begins_in_time(record.num_reasoning_tokens, record.ttft, record.ttfat, allowed)
    return begins and (record.qoe(READER_PACE) or 0.0) >= VIOLATION


# --- the claims -----------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Compare with a plain deployment, with each paper near saturation, and stage by stage."""
    rates = [round(SATURATION * share, 3) for share in SHARES]
    jobs = [Job(SCENARIO, s, rate, seed) for s in (PLAIN, OURS) for rate in rates for seed in seeds]
    jobs += [
        Job(SCENARIO, s, rate, seed) for s in (*SINGLES, *STAGES) for rate in BUSY for seed in seeds
    ]
    found = Results.of(measure, jobs, num_processes)
    return [
        *(_against_plain(found, share) for share in SHARES),
        *(_against_papers(found, rate) for rate in BUSY),
        *(_ablation(found, stage) for stage in STAGES),
    ]


_NAMES = ("ttft", "ttfat", "ttlt", "tpot")


def _felt(found: Results, system: str, rate: float) -> str:
    """Say P50/P99 of all times, QoE, and the tails of each class."""
    times = (
        f"{name.upper()} {found.sample(SCENARIO, system, rate, f'{name}_p50').mean:.3g}/"
        f"{found.sample(SCENARIO, system, rate, f'{name}_p99').mean:.3g}"
        for name in _NAMES
    )
    qoe = found.sample(SCENARIO, system, rate, "qoe").mean
    tails = (
        f"{title} {found.sample(SCENARIO, system, rate, name).mean:.3g}"
        for name, title in TITLES.items()
        if name in found.rows[next(iter(found.rows))]
    )
    hours = found.sample(SCENARIO, system, rate, "gpu_hours").mean
    shown = ", ".join((*times, f"QoE {qoe:.3f}", *tails))
    return f"{system}: {shown}, {hours:.2f} GPU-hours"


_NOT_WORSE = Bar(0.0, at_least=True, by_points=True)


def _against_plain(found: Results, share: float) -> Claim:
    rate = round(SATURATION * share, 3)
    claim = judged(
        PAPER,
        f"SLO attainment at {share:.0%} of saturation",
        f"{SCENARIO}, {rate:g} requests/s; share",
        "never worse",
        _NOT_WORSE,
        *found.pair(SCENARIO, (PLAIN, OURS), rate, "attainment"),
        PLAIN,
    )
    felt = (_felt(found, PLAIN, rate), _felt(found, OURS, rate))
    return replace(claim, note="; ".join((claim.note, *felt)))


def _against_papers(found: Results, rate: float) -> Claim:
    best = found.best(SCENARIO, SINGLES, rate, "attainment", most=True)
    before, after = found.pair(SCENARIO, (best, OURS), rate, "attainment")
    each = ", ".join(
        f"{s} {found.sample(SCENARIO, s, rate, 'attainment').mean:.1%}" for s in SINGLES
    )
    claim = judged(
        PAPER,
        "SLO attainment against the best single paper",
        f"{SCENARIO}, {rate:g} requests/s; share, equal GPUs",
        "leads each",
        _NOT_WORSE,
        before,
        after,
        best,
    )
    is_full = min(after.mean, before.mean) >= _ALL
    asked = f"{claim.asked}, or both {_ALL:.1%} or more"
    holds, note = is_full or claim.holds, f"{claim.note}; {each}"
    return replace(claim, holds=holds, asked=asked, note=note)


def _ablation(found: Results, stage: str) -> Claim:
    """Measure what a stage adds, in the mean over all busy loads."""
    samples = {s: [found.sample(SCENARIO, s, r, "attainment") for r in BUSY] for s in (stage, OURS)}
    before, after = (
        PerSeed(tuple(map(statistics.fmean, zip(*(each.values for each in loads), strict=True))))
        for loads in samples.values()
    )
    adds = (o.mean - w.mean for w, o in zip(samples[stage], samples[OURS], strict=True))
    claim = judged(
        PAPER,
        f"ablation: {stage}",
        f"{SCENARIO}, {', '.join(f'{r:g}' for r in BUSY)} requests/s; share",
        "each stage adds or is questioned",
        _NOT_WORSE,
        before,
        after,
        f"{OURS} {stage}",
    )
    shown = ", ".join(f"{each:+.1%}" for each in adds)
    return replace(claim, note=f"{claim.note}; the stage adds {shown}")
