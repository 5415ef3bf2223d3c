"""When a split pays: unified instances, each split and convertibles, on the same four GPUs.

Cells are prompt length × output length × inter-token limit × load. Requests are chats with
Llama-8B on A100s, or what another profile says (``PROFILE_VARIABLE``); lengths are even from half
to one and a half times the cell's. The load is a share of what unified instances carry without a
limit, by the rule of ``headway.cost.topology``.

A request keeps a cell's limits if its first token comes in time for its prompt (TokenScale's
limits), its second one inter-token limit later at most, and then no two tokens are further apart
than that: its greatest gap counts, save for the one in which its KV is handed over. Under a limit
unified instances have the chunk that fits it beside their batch, and requests of ours have a class
that promises both. Prefillers have a chunk of their own: twice the profile's, and under the plain
order the profile's or four times that where it is better. Attention costs the same however a prompt
is cut.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from headway.cost.kept import KeptShares, Pledge, kept_by, pays_split
from headway.cost.profile import load_profile
from headway.cost.schema import Profile
from headway.cost.topology import Demand, Needs, chunk_within
from headway.policies.scaling.headway import TopologyParams
from headway.presets import PRESETS
from headway.service_class import ServiceClass, Standing
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from studies.claims import Bar, Claim
from studies.compared import Expected, judged
from studies.layouts import instances
from studies.runs import PROFILE_VARIABLE, Job, Results, Row, run, spec_of
from studies.warm import NUM_RESIDENCES, Residence

PAPER = "topology"
PROFILE = "llama-8b-a100"
"""The profile of all instances; ``PROFILE_VARIABLE`` names another one, or a file."""
NUM_GPUS = 4
PROMPTS, OUTPUTS = (512, 2048, 8192), (32, 128)
LIMITS = (inf, 0.1, 0.05, 0.025)
LOADS = (0.5, 0.8)
PLAIN, OURS = "vllm-like", "headway"
UNIFIED = f"{NUM_GPUS}U"
SPLITS = tuple(f"{n}P+{NUM_GPUS - n}D" for n in range(1, NUM_GPUS))
CONVERTIBLE = "1P+2D+1C"
PREFILL_CHUNK, OTHER_CHUNKS = 2, (1, 4)
"""The profile's chunks in a prefiller's pass, and what the plain order tries, too."""
TTFT_LIMITS = ((256, 0.25), (1024, 0.4), (1 << 30, 2.0))
SCALING = TopologyParams()
"""The study chooses with what the scaling policy ``headway`` has."""
NOISE = 0.01
"""Share of the requests by which a topology may be below another and as good."""
_LEAST_REQUESTS = 300
_SPREAD = (0.5, 1.5)


class OnTopology(NamedTuple):
    """An order on a topology, and the limit that it is set up for."""

    order: str
    topology: str
    limit: float

    @property
    def name(self) -> str:
        """The name in the study's jobs."""
        return f"{self.order}, {self.topology}, {limit_text(self.limit)}"


def limit_text(limit: float) -> str:
    """Return ``none``, or milliseconds."""
    return "none" if limit == inf else f"{1000 * limit:g} ms"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Chats of these mean lengths at a share of what unified instances carry without a limit."""

    prompt: int
    output: int
    load: float

    @property
    def name(self) -> str:
        """The scenario's name."""
        return f"{self.prompt} + {self.output} tokens"

    @property
    def demand(self) -> Demand:
        """The demand of all requests together."""
        alike = Demand.of(1.0, self.prompt, self.output)
        return replace(alike, requests_per_s=self.load * NUM_GPUS / Needs.of(alike, _gpu()).unified)

    def needs(self, limit: float) -> Needs:
        """Return the instances that it needs under a limit."""
        return Needs.of(self.demand, _gpu(), limit).over(SCALING.target_utilisation)

    def goal(self, limit: float) -> Pledge:
        """Return what the policy would want to keep."""
        return Pledge(limit, _first_token(self.prompt), SCALING.choice_window)

    def kept(self, limit: float) -> KeptShares:
        """Return what the rule says that each topology keeps."""
        return kept_by(self.demand, _gpu(), self.goal(limit), NUM_GPUS)

    def split(self, limit: float) -> str:
        """Return the best split by the rule."""
        kept = self.kept(limit)
        return f"{kept.num_prefill}P+{kept.num_decode}D"

    def chosen(self, limit: float) -> str:
        """Return what the scaling policy makes of unified instances."""
        pays = pays_split(
            self.demand,
            _gpu(),
            self.goal(limit),
            NUM_GPUS,
            planned=SCALING.target_utilisation,
            gain=SCALING.gain,
        )
        return self.split(limit) if pays else UNIFIED

    def chunk(self, limit: float, longest_prompt: float | None = None) -> int:
        """Return the tokens of a unified instance's pass, prompts and batch, that keep a limit."""
        if limit == inf:
            return _gpu().chunk_tokens
        longest = _SPREAD[1] * self.prompt if longest_prompt is None else longest_prompt
        one = replace(self.demand, requests_per_s=self.demand.requests_per_s / NUM_GPUS)
        batch = one.requests_per_s * one.output_tokens * limit
        return max(_gpu().block_size, int(chunk_within(one, _gpu(), limit, longest) + batch))

    def requests(self, seed: int, limit: float = inf) -> Iterator[SimRequest]:
        """Yield Poisson arrivals, the same under every limit, for long enough under each."""
        rng = random.Random(seed)
        ttft = _first_token(self.prompt)
        promise = None if limit == inf else ServiceClass("chats", ttft=ttft, tpot=limit)
        standing, now, number = Standing(service=promise), 0.0, 0
        lasts = self._lasts
        while now < lasts or number < _LEAST_REQUESTS:
            now += rng.expovariate(self.demand.requests_per_s)
            prompt, output = (_even(rng, mean) for mean in (self.prompt, self.output))
            yield SimRequest(f"chat-{number}", now, prompt, output, standing=standing)
            number += 1

    @property
    def num_requests(self) -> float:
        """Requests of a run, in the mean."""
        return max(_LEAST_REQUESTS, self._lasts * self.demand.requests_per_s)

    @property
    def _lasts(self) -> float:
        """The seconds for which arrivals must last on the slowest of the topologies."""
        prompt, output = (round(mean * _SPREAD[1]) for mean in (self.prompt, self.output))
        longest = SimRequest("longest", 0.0, prompt, output)
        mean = SimRequest("mean", 0.0, self.prompt, self.output)
        specs = [self.spec(PLAIN, UNIFIED, self.chunk(limit, 0.0)) for limit in LIMITS]
        specs.append(self.spec(PLAIN, SPLITS[0], _gpu().chunk_tokens))
        return 1.05 * NUM_RESIDENCES * max(Residence.on(s, [mean]).of(longest) for s in specs)

    def spec(self, order: str, topology: str, chunk_tokens: int) -> ClusterSpec:
        """Return a cluster: ``4U`` with this chunk, or ``2P+2D``."""
        gpu = _gpu()
        others = replace(gpu, chunk_tokens=chunk_tokens) if topology == UNIFIED else gpu
        preset = PRESETS[order]
        if topology == CONVERTIBLE and order == PLAIN:
            preset = preset.but({"dispatch": "tokenscale"})  # the plain one knows no convertibles
        network = NetworkParams(gpu.link_bytes_per_s)
        kinds = instances(topology, gpu, others)
        return spec_of(preset, Conditions(kinds, network, limits=UNLIMITED))


def _gpu() -> Profile:
    """Return the profile of every instance."""
    return _gpu_of(os.environ.get(PROFILE_VARIABLE) or PROFILE)


@cache
def _gpu_of(name: str) -> Profile:
    profile = load_profile(name)
    return replace(profile, prefill_chunk_tokens=PREFILL_CHUNK * profile.chunk_tokens)


def topologies() -> Sequence[str]:
    """Return what the plain order is tried on."""
    chunks = [times * _gpu().chunk_tokens for times in OTHER_CHUNKS]
    others = [f"{n}P/{chunk}+{NUM_GPUS - n}D" for chunk in chunks for n in range(1, NUM_GPUS)]
    return UNIFIED, *SPLITS, *others, CONVERTIBLE


def _even(rng: random.Random, mean: int) -> int:
    return max(1, round(mean * rng.uniform(*_SPREAD)))


# --- runs -----------------------------------------------------------------------------


_MOST_REQUESTS = 2500


def all_traffic() -> Sequence[Traffic]:
    """Return the traffic whose run of ten residences is not too long to be made so often."""
    every = (Traffic(*each) for each in product(PROMPTS, OUTPUTS, LOADS))
    return [traffic for traffic in every if traffic.num_requests <= _MOST_REQUESTS]


def systems(traffic: Traffic) -> Iterator[OnTopology]:
    """Yield what is run: ours on unified instances and on the best split.

    Under a limit the plain order does the same on prefillers and decoders as without one.
    """
    for topology in topologies():
        for limit in LIMITS if topology == UNIFIED else (inf,):
            yield OnTopology(PLAIN, topology, limit)
    for limit in LIMITS:
        for topology in (UNIFIED, traffic.split(limit)):
            yield OnTopology(OURS, topology, limit)


def _jobs(seeds: Sequence[int]) -> Iterator[Job]:
    for traffic in all_traffic():
        for system in systems(traffic):
            yield from (Job(traffic.name, system.name, traffic.load, seed) for seed in seeds)


def measure(job: Job) -> Row:
    """Run once; the job's rate is the load."""
    traffic = next(t for t in all_traffic() if (t.name, t.load) == (job.scenario, job.rate))
    order, topology, limit = next(s for s in systems(traffic) if s.name == job.system)
    spec = traffic.spec(order, topology, traffic.chunk(limit if order == PLAIN else inf))
    records = run(spec, traffic.requests(job.seed, limit if order == OURS else inf)).records
    judged_by = LIMITS if order == PLAIN and topology != UNIFIED else (limit,)
    return {
        limit_text(each): statistics.fmean(keeps(record, each) for record in records)
        for each in judged_by
    }


def keeps(record: Record, limit: float) -> bool:
    """Return whether a request keeps the limits of a cell with this inter-token limit."""
    allowed = _first_token(record.num_prompt_tokens)
    if not record.finished or record.ttft is None or record.ttft > allowed:
        return False
    instants = record.instants()
    if limit == inf or len(instants) < 2:
        return True
    if instants[1] - record.arrival_at > allowed + limit:
        return False
    most = limit * (1 + 1e-9)
    return not len(instants) > 2 or bool(np.max(np.diff(instants[1:])) <= most)


def _first_token(num_prompt_tokens: float) -> float:
    """Return the seconds within which a first token is to come."""
    return next(seconds for edge, seconds in TTFT_LIMITS if num_prompt_tokens <= edge)


# --- the map --------------------------------------------------------------------------


def reproduce(seeds: Sequence[int], num_processes: int) -> list[Claim]:
    """Return, cell by cell, what the rule's choice and ours on it have of the best plain one's."""
    results = Results.of(measure, list(_jobs(seeds)), num_processes)
    return [
        claim
        for traffic, limit in product(all_traffic(), LIMITS)
        for claim in claims_of(results, traffic, limit)
    ]


def claims_of(results: Results, traffic: Traffic, limit: float) -> Sequence[Claim]:
    """Return a cell's claims: of the rule's choice under the plain order, and of ours on it."""
    return _of_rule(results, traffic, limit), _of_ours(results, traffic, limit)


def _plain(topology: str, limit: float) -> str:
    """Return the name of the plain order on a topology in a cell."""
    return OnTopology(PLAIN, topology, limit if topology == UNIFIED else inf).name


def _of_rule(results: Results, traffic: Traffic, limit: float) -> Claim:
    after = _plain(traffic.chosen(limit), limit)
    each = ", ".join(
        f"{topology} {_share(results, traffic, _plain(topology, limit), limit):.1%}"
        for topology in topologies()
    )
    needs, kept = traffic.needs(limit), traffic.kept(limit)
    said = (
        f"unified {needs.unified:.2f} keep {kept.unified:.0%}, "
        f"split {needs.prefill:.2f} + {needs.decode:.2f} {kept.split:.0%}"
    )
    claim = _claim(results, traffic, limit, "the rule's topology, plain", after)
    return replace(claim, note=f"{claim.note}; {traffic.chosen(limit)}: {said}; {each}")


def _of_ours(results: Results, traffic: Traffic, limit: float) -> Claim:
    ours = OnTopology(OURS, traffic.chosen(limit), limit).name
    return _claim(results, traffic, limit, f"{OURS} on the rule's topology", ours)


def _claim(results: Results, traffic: Traffic, limit: float, what: str, after: str) -> Claim:
    plain = [_plain(topology, limit) for topology in topologies()]
    best = results.best(traffic.name, plain, traffic.load, limit_text(limit), most=True)
    return judged(
        PAPER,
        f"{what}: share that keeps its limits",
        f"{traffic.name}, {traffic.load:.0%} load, between tokens {limit_text(limit)}",
        Expected("at least the best plain topology's", Bar(-NOISE, at_least=True, by_points=True)),
        results.pair(traffic.name, (best, after), traffic.load, limit_text(limit)),
        best,
    )


def _share(results: Results, traffic: Traffic, system: str, limit: float) -> float:
    return results.sample(traffic.name, system, traffic.load, limit_text(limit)).mean
