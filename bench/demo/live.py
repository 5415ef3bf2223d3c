"""The demo's pairs: a cluster a preset, one after the other, with the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.demo import warm_up
from bench.demo.capacity import Capacity
from bench.demo.load import LoadBounds, Offer, Regime
from bench.runner.comparison import LiveComparison, Measurement, compare
from bench.runner.offered import counted, replayed
from bench.runner.paired import PairedSamples, paired
from bench.runner.started import LiveTarget, bench_options, cluster_target
from bench.serve.classes import Alone, by_class
from bench.serve.plan import Plan
from bench.serve.replay import ReplayedRequest
from headway.metrics import percentile
from results import plots
from services.local import prometheus
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts

START = 240.0  # seconds in which a cluster must serve
STOP = 30.0  # seconds that its end takes at most
PATIENCE = 120.0  # seconds for the answers, from the last arrival on
_DRIFT = 0.25  # a share: beyond it the machine changed within a pair
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


@dataclass(slots=True)
class Pair:
    """A seed under every preset: what the clusters carried, and what they are offered.

    ``workers``: of each preset.
    """

    seed: int
    workers: dict[str, WorkerCounts] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)

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
            "workers": {name: asdict(each) for name, each in self.workers.items()},
            "capacities": {name: asdict(each) for name, each in self.capacities.items()},
            "offers": {name: asdict(each) for name, each in self.offers.items()},
        }


class Demo(LiveComparison):
    """The presets in pairs: every pair's load is a share of what its clusters carry on average.

    Every preset's capacity is measured first, in each topology, and it gets the one that carries
    most.
    """

    def __init__(self, setting: Setting, policies: Sequence[PolicyOptions]) -> None:
        super().__init__()
        self._setting = setting
        self._policies = {each.preset: each for each in policies}
        self._plans: dict[str, Plan] = {}
        self.pairs: dict[int, Pair] = {}
        self._pair: Pair
        self.drawn: dict[str, dict[str, list[ReplayedRequest]]] = {}
        """All requests by regime and preset."""
        self.systems = list(self._policies)
        self.regimes = [each.name for each in setting.regimes]

    async def begin(self, seed: int, order: Sequence[str]) -> None:
        """Measure what the presets carry, and plan the pair's load."""
        setting, console = self._setting, self.console
        pair = self.pairs[seed] = self._pair = Pair(seed)
        for name in order:
            carried = {}
            for workers in setting.topologies:
                async with self._cluster(name, workers) as target:
                    carried[workers] = await self._measured(target, seed)
                console.print(f"seed {seed}, {name}, {shown(workers)}: {carried[workers]}")
            best = most_carrying(carried)
            pair.workers[name], pair.capacities[name] = best, carried[best]
        if pair.drift > _DRIFT:
            said = f"seed {seed}: one cluster carried {pair.drift:.0%} more than another"
            console.print(f"{said}; the machine may have changed meanwhile")
        model = Path(setting.model).name
        for regime in setting.regimes:
            offer = pair.offers[regime.name] = Offer.of(regime, pair.saturation, setting.bounds)
            self._plans[regime.name] = offer.plan(model, seed, setting.max_tokens)
            met = (
                f"{regime.mean * pair.saturation / each.requests_per_s:.0%} of {name}'s"
                for name, each in pair.capacities.items()
            )
            console.print(f"{regime.name}: {offer}; the mean is {', '.join(met)}")

    def serve(self, system: str) -> AbstractAsyncContextManager[LiveTarget]:
        """Run a preset's cluster, in the topology that carried most."""
        return self._cluster(system, self._pair.workers[system])

    def _cluster(self, name: str, workers: WorkerCounts) -> AbstractAsyncContextManager[LiveTarget]:
        options = self._setting.options(self._policies[name], workers)
        return cluster_target(options, self._setting.log_dir / name, START)

    async def prepare(self, system: str, target: LiveTarget, seed: int) -> None:
        """Warm it up, as it was when its capacity was measured."""
        await self._measured(target, seed)

    async def _measured(self, target: LiveTarget, seed: int) -> Capacity:
        setting, options = self._setting, target.cluster.options
        places = setting.num_places(options.workers)
        numbers = (places, setting.num_warm_up, seed, setting.max_tokens)
        return await warm_up.warm_up(target.url, options.served_name, *numbers)

    async def measure(self, system: str, target: LiveTarget, regime: str, seed: int) -> Measurement:
        """Replay the requests; figures are by class, and of what the workers did meanwhile."""
        pair = self.pairs[seed]
        before = await _work(target.cluster)
        within = pair.offers[regime].seconds + PATIENCE
        requests = await replayed(target.url, self._plans[regime], within=within)
        preemptions, seconds, passes = [
            now - then for then, now in zip(before, await _work(target.cluster), strict=True)
        ]
        worked = {"preemptions": preemptions / len(requests)}
        worked |= {"pass_time": seconds / passes} if passes else {}
        self.drawn.setdefault(regime, {}).setdefault(system, []).extend(requests)
        figures = {**by_class(requests, pair.alone), **_counts(requests), **worked}
        return Measurement(figures, requests)

    def samples(self, seed: int, before: Measurement, after: Measurement) -> PairedSamples:
        """Return the values of requests that ended under both presets."""
        return paired(before.requests, after.requests, self.pairs[seed].alone)

    def title(self, regime: str, runs: Mapping[int, Measurement]) -> str:
        """Return the number of requests and pairs."""
        num_requests = sum(self.pairs[seed].offers[regime].num_requests for seed in runs)
        return f"{regime}: {num_requests} requests a preset in {len(runs)} pairs"

    def packed(self) -> Mapping[str, Any]:
        """Return the pairs, too."""
        return {"pairs": [pair.packed() for pair in self.pairs.values()]}


async def run_demo(
    setting: Setting,
    policies: Sequence[PolicyOptions],
    seeds: Sequence[int],
    json: Path | None,
    plots_in: Path | None,
) -> int:
    """Run all pairs, print and draw; return 1 where a request failed."""
    demo = Demo(setting, policies)
    num_runs = len(policies) * len(seeds)
    demo.console.print(
        f"{setting.num_clusters * num_runs} clusters, one after the other, all but {num_runs} of "
        "them to measure what they carry: "
        f"about {num_runs * setting.usual_seconds / 60:.0f} minutes, and never over "
        f"{num_runs * setting.most_seconds / 60:.0f}"
    )
    runs = await compare(demo, seeds, json)
    if plots_in is not None:
        for regime, drawn in demo.drawn.items():
            values = {name: values_of(requests) for name, requests in drawn.items()}
            plots.latency_cdfs(plots_in / regime, values)
    return runs.status


def values_of(outcomes: Sequence[ReplayedRequest]) -> Mapping[str, Sequence[float]]:
    """Return every finished request's times, seconds, by metric: what plots draw."""
    times = [each.times for each in outcomes if each.times is not None]
    return {
        name: [value for each in times if (value := each.metric(name)) is not None]
        for name in ("ttft", "ttfat", "ttlt")
    }


def most_carrying(carried: Mapping[WorkerCounts, Capacity]) -> WorkerCounts:
    """Return the topology with the most tokens/s; of equal ones the first."""
    return max(carried, key=lambda workers: carried[workers].tokens_per_s)


def shown(workers: WorkerCounts) -> str:
    """Return the numbers of workers for people: ``1 prefill, 1 decode``."""
    counts = workers.by_role().items()
    return ", ".join(f"{count} {role}" for role, count in counts if count)


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
