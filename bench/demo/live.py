"""The demo's pairs: a cluster a preset, one after the other, with the same requests."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from bench.cluster.offered import counted, print_failures, replayed
from bench.cluster.started import bench_options, started
from bench.demo import warm_up
from bench.demo.capacity import Capacity
from bench.demo.load import LoadBounds, Offer, Regime
from bench.serve.classes import Alone, by_class
from bench.serve.plan import Plan
from bench.serve.replay import ReplayedRequest
from headway.metrics import percentile
from results.output import num_cores
from services.local import prometheus
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts

START = 240.0  # seconds in which a cluster must serve
STOP = 30.0  # seconds that its end takes at most
PATIENCE = 120.0  # seconds for the answers, from the last arrival on
_PREEMPTIONS = "headway_worker_preemptions_total"
_PASSES = "headway_worker_forward_pass_seconds"


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting that all runs share; ``num_requests`` are those of the warm-up's mix.

    ``topologies``: the workers that a preset may have, as many in each. Of several it gets those
    that carry most.
    """

    model: str
    topologies: Sequence[WorkerCounts]
    device: str
    max_running: int
    num_warm_up: int
    regimes: Sequence[Regime]
    bounds: LoadBounds
    log_dir: Path
    max_tokens: int = 0
    """Of a chat's output, for a model that does not end its answers; 0: any number."""
    least_pass_time: float = 0.0
    """Seconds; 0: as fast as the machine can."""
    engine: str = "torch"
    engine_args: str = ""
    """Its options, JSON."""

    def num_places(self, workers: WorkerCounts) -> int:
        """Return how many requests can decode at a time."""
        return self.max_running * (workers.decode + workers.unified)

    @property
    def most_seconds(self) -> float:
        """Return the most seconds of a preset's clusters: each topology is measured, one serves."""
        regimes = len(self.regimes) * (self.bounds.seconds + PATIENCE)
        return self.num_clusters * (START + warm_up.MOST_SECONDS + STOP) + regimes

    @property
    def usual_seconds(self) -> float:
        """Return the seconds that a preset's clusters usually take."""
        return 40.0 * self.num_clusters + len(self.regimes) * (self.bounds.seconds + 15.0)

    @property
    def num_clusters(self) -> int:
        """Return the clusters of a preset in a pair."""
        return len(self.topologies) + 1

    def options(self, policies: PolicyOptions, workers: WorkerCounts) -> ClusterOptions:
        """Return one preset's cluster, each worker with the demo's limit."""
        return bench_options(
            self.model,
            policies,
            workers,
            *("--engine", self.engine),
            *(("--engine-args", self.engine_args) if self.engine_args else ()),
            *("--max-running", str(self.max_running)),
            *("--least-pass-time", str(self.least_pass_time)),
            device=self.device,
            has_metrics=True,
        )


@dataclass(frozen=True, slots=True)
class PresetRun:
    """One preset in one regime: all requests, and figures by class."""

    requests: Sequence[ReplayedRequest]
    figures: Mapping[str, float]


@dataclass(slots=True)
class Pair:
    """A seed under every preset: what the clusters carried, and runs by regime and preset.

    ``machine_load``: the system's load average over the minute before. ``workers``: of each preset.
    """

    seed: int
    began_at: str
    machine_load: float
    workers: dict[str, WorkerCounts] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    runs: dict[str, dict[str, PresetRun]] = field(default_factory=dict)

    @property
    def alone(self) -> Alone:
        """Return the time of a request that runs alone: the least of the clusters."""
        times = [each.alone for each in self.capacities.values()]
        return Alone(min(each.ttft for each in times), min(each.tpot for each in times))

    @property
    def saturation(self) -> float:
        """Return requests/s at saturation: the mean of what the clusters carry."""
        return fmean(each.requests_per_s for each in self.capacities.values())

    @property
    def drift(self) -> float:
        """How much more the best of equal clusters carried than the worst, as a share."""
        rates: dict[WorkerCounts | None, list[float]] = {}
        for name, each in self.capacities.items():
            rates.setdefault(self.workers.get(name), []).append(each.tokens_per_s)
        return max(max(each) / min(each) for each in rates.values()) - 1.0

    def packed(self) -> dict[str, Any]:
        """Return it for JSON, the presets in the order in which they ran."""
        return {
            "seed": self.seed,
            "began_at": self.began_at,
            "machine_load": self.machine_load,
            "workers": {name: asdict(each) for name, each in self.workers.items()},
            "capacities": {name: asdict(each) for name, each in self.capacities.items()},
            "offers": {name: asdict(each) for name, each in self.offers.items()},
            "figures": {
                regime: {name: dict(run.figures) for name, run in runs.items()}
                for regime, runs in self.runs.items()
            },
        }


async def run_pair(
    setting: Setting, policies: Sequence[PolicyOptions], seed: int, console: Console
) -> tuple[Pair, int]:
    """Run every preset in this order; return the pair and how many requests failed.

    Every preset's capacity is measured first, in each topology, and it gets the one that carries
    most; of these the mean sets one load for all.
    """
    pair = Pair(seed, time.strftime("%Y-%m-%d %H:%M:%S"), os.getloadavg()[0])
    said = f"seed {seed}, {pair.began_at}: the machine's load is {pair.machine_load:.1f}"
    console.print(f"{said} on {num_cores()} cores")
    for each in policies:
        carried = {}
        for workers in setting.topologies:
            async with _cluster(setting, each, workers) as cluster:
                carried[workers] = await _measured(setting, cluster, seed)
            console.print(f"{each.preset}, {shown(workers)}: {carried[workers]}")
        best = most_carrying(carried)
        pair.workers[each.preset], pair.capacities[each.preset] = best, carried[best]
    plans = _offer(setting, pair)
    for offer in pair.offers.values():
        met = (
            f"{offer.regime.mean * pair.saturation / each.requests_per_s:.0%} of {name}'s"
            for name, each in pair.capacities.items()
        )
        console.print(f"{offer.regime.name}: {offer}; the mean is {', '.join(met)}")
    num_failed = 0
    for each in policies:
        async with _cluster(setting, each, pair.workers[each.preset]) as cluster:
            await _measured(setting, cluster, seed)  # it is warm now
            for regime, plan in plans.items():
                requests, worked = await _replayed(cluster, plan, pair.offers[regime])
                num_failed += print_failures(console, f"{each.preset}, {regime}", requests)
                figures = {**by_class(requests, pair.alone), **_counts(requests), **worked}
                pair.runs.setdefault(regime, {})[each.preset] = PresetRun(requests, figures)
    return pair, num_failed


def most_carrying(carried: Mapping[WorkerCounts, Capacity]) -> WorkerCounts:
    """Return the topology with the most tokens/s; of equal ones the first."""
    return max(carried, key=lambda workers: carried[workers].tokens_per_s)


def shown(workers: WorkerCounts) -> str:
    """Return the numbers of workers for people: ``1 prefill, 1 decode``."""
    counts = workers.by_role().items()
    return ", ".join(f"{count} {role}" for role, count in counts if count)


def _cluster(
    setting: Setting, policies: PolicyOptions, workers: WorkerCounts
) -> AbstractAsyncContextManager[LocalCluster]:
    """Run a preset's cluster."""
    options = setting.options(policies, workers)
    return started(options, setting.log_dir / policies.preset, START)


async def _measured(setting: Setting, cluster: LocalCluster, seed: int) -> Capacity:
    name = cluster.options.served_name
    places = setting.num_places(cluster.options.workers)
    numbers = (places, setting.num_warm_up, seed, setting.max_tokens)
    return await warm_up.warm_up(cluster.url, name, *numbers)


def _offer(setting: Setting, pair: Pair) -> dict[str, Plan]:
    """Plan every regime by what the pair's clusters carry."""
    for regime in setting.regimes:
        pair.offers[regime.name] = Offer.of(regime, pair.saturation, setting.bounds)
    model = Path(setting.model).name
    numbers = (pair.seed, setting.max_tokens)
    return {name: offer.plan(model, *numbers) for name, offer in pair.offers.items()}


async def _replayed(
    cluster: LocalCluster, plan: Plan, offer: Offer
) -> tuple[list[ReplayedRequest], Mapping[str, float]]:
    """Return the requests, by arrival, and what the workers did meanwhile."""
    before = await _work(cluster)
    requests = await replayed(cluster.url, plan, within=offer.seconds + PATIENCE)
    preemptions, seconds, passes = [
        now - then for then, now in zip(before, await _work(cluster), strict=True)
    ]
    worked = {"preemptions": preemptions / len(requests)}
    return requests, worked | ({"pass_time": seconds / passes} if passes else {})


async def _work(cluster: LocalCluster) -> tuple[float, float, float]:
    """Return all preemptions, and the seconds and number of the decode passes reported."""
    specs = [each.spec for each in cluster.supervisor.processes if each.spec.service == "worker"]
    workers = [prometheus.address_of(spec) for spec in specs]
    decoders = [prometheus.address_of(spec) for spec in specs if spec.role != "prefill"]
    return (
        sum([await counted(url, _PREEMPTIONS) for url in workers]),
        sum([await counted(url, f"{_PASSES}_sum") for url in decoders]),
        sum([await counted(url, f"{_PASSES}_count") for url in decoders]),
    )


def _counts(requests: Sequence[ReplayedRequest]) -> dict[str, float]:
    late = sorted(each.sent_at - each.planned.arrival_at for each in requests)
    return {
        "num_requests": len(requests),
        "num_failed": sum(bool(each.error_kind) for each in requests),
        "sent_late_p99": percentile(late, 0.99),
    }
