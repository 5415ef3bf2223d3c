"""Staggered Batch Scheduling: mean TTFT, chunk utilisation and the price of waiting.

The set-ups of the paper's section 5: 3 prefill instances of 8 DP units, 5 ms of dispatch latency,
prompts of up to 3K or of 3K to 64K tokens. The baseline is immediate dispatch by the rule that
does best at the paper's load, of all rules that there are.

Two costs of a pass stand beside each other. By one a pass waits for its fullest unit; by the other
for the tokens of all units, and that one alone meets the four points of the paper's Table 1. Those
points are passes of 0.66 to 1.34 s, longer than the mean TTFT that the same table gives. So with it
systems are compared at the TTFT that the baseline has at the paper's own requests/s.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.presets import PRESETS, Preset
from headway.sim.cluster import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.worker import InstanceSpec
from studies import compared, sbs_decode
from studies.claims import Bar, Claim, PerSeed
from studies.compared import Compared, Expected, Quantity, judged
from studies.curves import rate_at, value_at
from studies.runs import Job, Results, Row, arrivals, known, run, spec_of

PAPER = "sbs"
PROFILE = "deepseek-v3-h800-prefill-dp8"
ON_THE_POINTS = "deepseek-v3-h800-prefill-dp8-all-units"
NUM_INSTANCES = 3
DISPATCH_LATENCY = 0.005
PAPER_RATE = 75.0  # requests/s, below 80 % of what three instances can prefill
NUM_REQUESTS = 1500
NUM_WARM_UP = 100
RULES = ("round-robin", "random", "least-outstanding", "join-shortest-queue", "least-tokens")
PACKINGS = ("round-robin", "pbaa")


def _short_prompt(rng: random.Random) -> int:
    return max(1, int(3072 * rng.betavariate(1, 2)))


def _long_prompt(rng: random.Random) -> int:
    """3K to 64K tokens, 6.7K in the mean."""
    return min(65_536, 3072 + int(rng.lognormvariate(7.346, 1.3)))


@dataclass(frozen=True, slots=True)
class PrefillSetUp:
    """``ttft_limit``: mean TTFT in seconds at which the paper's Table 1 compares, 0 if it does not.

    ``rates``: requests/s, from light load to overload. ``base_rate``: the baseline's requests/s in
    Table 1, whose mean TTFT is the limit instead; 0 if the paper's is. ``profile``: a pass's cost.
    """

    name: str
    chunk_tokens: int
    rates: tuple[float, ...]
    ttft_limit: float = 0.0
    prompt: Callable[[random.Random], int] = _short_prompt
    base_rate: float = 0.0
    profile: str = PROFILE
    num_requests: int = 0
    """0: ``NUM_REQUESTS``."""


SHORT, LARGER, LONG = "3K", "5K", "64K"
SHORT_SHARED, LARGER_SHARED = "3K, all units", "5K, all units"
SET_UPS: Mapping[str, PrefillSetUp] = {
    SHORT: PrefillSetUp(
        "3 × DP 8, chunk 3072", 3072, (2.0, 30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 140.0), 0.8
    ),
    LARGER: PrefillSetUp("3 × DP 8, chunk 5120", 5120, (45.0, 60.0, 75.0, 110.0, 125.0), 1.0),
    LONG: PrefillSetUp(
        "3 × DP 8, chunk 16384, prompts 3K to 64K",
        16_384,
        (6.0, 10.0, 14.0, 18.0),
        prompt=_long_prompt,
        num_requests=5000,  # its longest prompt takes 27 s
    ),
    SHORT_SHARED: PrefillSetUp(
        "3 × DP 8, chunk 3072, the cost of all units' tokens",
        3072,
        (2.0, 30.0, 45.0, 57.0, 60.0, 65.0, 70.0, 75.0),
        base_rate=57.0,
        profile=ON_THE_POINTS,
    ),
    LARGER_SHARED: PrefillSetUp(
        "3 × DP 8, chunk 5120, the cost of all units' tokens",
        5120,
        (45.0, 60.0, 70.0, 75.0, 80.0, 85.0),
        base_rate=70.0,
        profile=ON_THE_POINTS,
    ),
}


def _preset(system: str) -> Preset:
    if system == PAPER:
        return PRESETS["sbs"]
    rule, packing = system.split("/")
    params = MappingProxyType({"dispatch": MappingProxyType({"rule": rule})})
    return replace(PRESETS["vllm-like"], packing=packing, params=params)


def _requests(job: Job) -> Iterator[SimRequest]:
    rng, set_up = random.Random(job.seed), SET_UPS[job.scenario]
    for number, at in arrivals(rng, job.rate, set_up.num_requests or NUM_REQUESTS):
        yield SimRequest(f"r{number}", at, set_up.prompt(rng), 1)


def measure(job: Job) -> Row:
    """Run once. A system is sbs, or a rule and a packing of immediate dispatch."""
    set_up = SET_UPS[job.scenario]
    profile = replace(load_profile(set_up.profile), chunk_tokens=set_up.chunk_tokens)
    instances = ((InstanceSpec(Role.PREFILL, profile), NUM_INSTANCES),)
    network = NetworkParams(profile.link_bytes_per_s, dispatch_latency=DISPATCH_LATENCY)
    spec = spec_of(_preset(job.system), Conditions(instances, network, limits=UNLIMITED))
    records, cluster = run(spec, _requests(job))
    tokens = sum(w.device.num_prefill_tokens for w in cluster.workers)
    chunks = sum(w.device.num_prefill_passes for w in cluster.workers)
    return {
        "ttft": statistics.fmean(known(records[NUM_WARM_UP:], "ttft")),
        "utilisation": tokens / (chunks * profile.num_units * profile.chunk_tokens),
    }


# --- the claims -----------------------------------------------------------------------


def best_baseline(num_processes: int, at: str = SHORT, rate: float = PAPER_RATE) -> str:
    """Return the rule and packing with the least mean TTFT at a load of the paper's."""
    systems = [f"{rule}/{packing}" for packing in PACKINGS for rule in RULES]
    jobs = [Job(at, system, rate, 1) for system in systems]
    results = Results.of(measure, jobs, num_processes)
    return results.best(at, systems, rate, "ttft")


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Check every claim: prefill, by each cost of a pass, then decode."""
    shared = SET_UPS[SHORT_SHARED].base_rate
    of_profile = {
        PROFILE: best_baseline(num_processes),
        ON_THE_POINTS: best_baseline(num_processes, SHORT_SHARED, shared),
    }
    baselines = {at: of_profile[set_up.profile] for at, set_up in SET_UPS.items()}
    jobs = [
        Job(at, system, rate, seed)
        for at, set_up in SET_UPS.items()
        for system in (baselines[at], PAPER)
        for rate in set_up.rates
        for seed in seeds
    ]
    results = Results.of(measure, jobs, num_processes)
    rows = [_ttft(at, rate, baselines[at]) for at in SET_UPS for rate in SET_UPS[at].rates]
    places = {at: set_up.name for at, set_up in SET_UPS.items()}
    return [
        *compared.claims(PAPER, rows, places, results),
        *(claim for at in _TABLE_1 for claim in _at_the_limit(results, at, baselines[at], seeds)),
        *sbs_decode.reproduce(seeds, num_processes),
    ]


_FREE = Bar(0.001, by_points=True)
_PAPERS_GAIN = Bar(-0.30)
_WHY: Mapping[float, str] = {
    2.0: "waiting costs nothing where there is nothing to gather",
    30.0: "at low load there is less to gather",
    140.0: "overload: inside a group the longest goes first, which starves the short",
}


def _ttft(at: str, rate: float, baseline: str) -> Compared:
    is_paper = at in (SHORT, SHORT_SHARED) and 2.0 < rate <= PAPER_RATE
    value = "-30…-40 % below 80 % of load" if is_paper else "SBS below" if at == LONG else "-"
    bar = _PAPERS_GAIN if is_paper else _FREE if rate == SET_UPS[SHORT].rates[0] else Bar(0.0)
    asked = Expected(value, bar, _WHY.get(rate, "") if at == SHORT else "")
    return Compared("mean TTFT", (at, rate), Quantity("ttft"), (baseline, PAPER), asked)


_OF_3K = ("57 to 70 (+22.8 %)", 0.228, "0.52 to 0.89 (+37 points)", 0.37)
_OF_5K = ("70 to 79 (+12.9 %)", 0.129, "0.53 to 0.88 (+35 points)", 0.35)
_TABLE_1 = {SHORT: _OF_3K, LARGER: _OF_5K, SHORT_SHARED: _OF_3K, LARGER_SHARED: _OF_5K}


def _at_the_limit(
    results: Results, at: str, baseline: str, seeds: Sequence[int]
) -> Iterator[Claim]:
    """Compare requests/s and utilisation at one mean TTFT (Table 1)."""
    set_up = SET_UPS[at]

    def curve(system: str, seed: int, figure: str) -> dict[float, float]:
        jobs = (Job(at, system, rate, seed) for rate in set_up.rates)
        return {job.rate: results.rows[job][figure] for job in jobs}

    limits = [
        set_up.ttft_limit or curve(baseline, seed, "ttft")[set_up.base_rate] for seed in seeds
    ]
    rates: dict[str, PerSeed] = {}
    used: dict[str, PerSeed] = {}
    for system in (baseline, PAPER):
        reached = [
            rate_at(curve(system, seed, "ttft"), limit)
            for seed, limit in zip(seeds, limits, strict=True)
        ]
        rates[system] = PerSeed(tuple(reached))
        used[system] = PerSeed(
            tuple(
                value_at(curve(system, seed, "utilisation").items(), rate)
                for seed, rate in zip(seeds, reached, strict=True)
            )
        )
    speed, gain, utilisation, points = _TABLE_1[at]
    where = set_up.name
    if set_up.ttft_limit:
        limit = f"at a mean TTFT of {set_up.ttft_limit:g} s"
    else:
        limit = f"at the baseline's mean TTFT at {set_up.base_rate:g} requests/s"
    used_more = Expected(utilisation, Bar(points, at_least=True, by_points=True))
    for name, unit, asked, sample in (
        ("requests/s", "requests/s", Expected(speed, Bar(gain, at_least=True)), rates),
        ("chunk utilisation", "share", used_more, used),
    ):
        pair = sample[baseline], sample[PAPER]
        yield judged(PAPER, f"{name} {limit}", f"{where}; {unit}", asked, pair, baseline)
