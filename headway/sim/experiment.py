"""Runs a preset on simulated instances, against requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from headway.bounds import Bounded, between
from headway.core.defaults import ASSUMED_PROFILE, SIMULATED_REPORT_INTERVAL
from headway.core.scheduler.events import Decision
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import policy_settings
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.errors import invalid
from headway.policies import registry
from headway.policies.packing.flow_control import FlowControl
from headway.presets import Preset
from headway.sim.cluster import (
    SIMULATED_GATEWAY,
    SIMULATED_WORKER,
    ClusterSpec,
    SimCluster,
    SimRequest,
)
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.pace import MeasuredPace
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

Instances = Sequence[tuple[InstanceSpec, int]]
_LOOK_EVERY = 60.0
_LIVE = WorkerSettings()
_ENDLESS = FlowControl(num_cycles=1 << 30)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a run: instances, network, limits, and what changes of every preset.

    ``linger``: None for a round trip to the scheduler. ``max_running``: requests of a DP unit in
    one pass, 0 for any number. ``flow_control``: off unless given, so that overload shows as
    latency. ``pace``: of a machine that is not always as fast as its profile says.
    """

    instances: Instances
    network: NetworkParams = field(default_factory=NetworkParams)
    report_interval: float = SIMULATED_REPORT_INTERVAL
    linger: float | None = None
    watermark: float = _LIVE.watermark
    max_running: int = _LIVE.max_running
    flow_control: FlowControl = _ENDLESS
    policies: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    params: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))
    pace: MeasuredPace | None = None

    def but(
        self, policies: Mapping[str, str], params: Mapping[str, Mapping[str, object]]
    ) -> Conditions:
        """Return a copy with these policies and parameters over its own, as ``Preset.but``."""
        own = {
            q: p for q, p in self.params.items() if policies.get(q) in (None, self.policies.get(q))
        }
        merged = {q: {**own.get(q, {}), **params.get(q, {})} for q in {**own, **params}}
        return replace(self, policies={**self.policies, **policies}, params=merged)


@dataclass(frozen=True, slots=True)
class Failure(Bounded):
    """An instance (``decode-3``, by role and number from 1) dies ``at`` so many seconds.

    Another of its kind is ordered ``back_after`` seconds later, if ever.
    """

    instance: str
    at: float = between(0, 1e9, default=0.0)
    back_after: float | None = between(0, 1e9, default=None)


@dataclass(frozen=True, slots=True)
class Run:
    """Results of a run; seconds."""

    records: Sequence[Record]
    decisions: Sequence[Decision]
    ended_at: float
    gpu_seconds: float
    num_passes: int
    num_preemptions: int = 0


def cluster_spec(preset: Preset, conditions: Conditions) -> ClusterSpec:
    """Return the preset's policies with its own parameters, and the conditions' over them."""
    preset = preset.but(conditions.policies, conditions.params)
    network = conditions.network
    round_trip = network.latency + network.dispatch_latency
    found = policy_settings(
        preset,
        _costs(preset, conditions),
        SchedulerSettings(
            flow_control=conditions.flow_control,
            max_waiting=SIMULATED_GATEWAY.max_waiting,
            kv_watermark=conditions.watermark,
        ),
        replace(
            SIMULATED_WORKER,
            watermark=conditions.watermark,
            report_interval=conditions.report_interval,
            linger=1.1 * round_trip if conditions.linger is None else conditions.linger,
            max_running=conditions.max_running,
        ),
    )
    stands_for_it = found.estimation.answer.simulated_as
    name = found.estimation.name if stands_for_it is None else stands_for_it
    return ClusterSpec(
        instances=conditions.instances,
        scheduler=found.scheduler,
        worker=found.worker,
        batching=found.batching,
        estimation=replace(found.estimation, name=name) if name else None,
        gateway=replace(SIMULATED_GATEWAY, burst=found.burst.name, burst_params=found.burst.params),
        network=network,
        pace=conditions.pace,
    )


def _costs(preset: Preset, conditions: Conditions) -> Costs:
    """Return what requests and tokens cost on these instances, for policies that ask.

    Routing by velocities reads the assumed ones where the instances' profile has none.
    """
    costs = Costs.of([(kind.role, kind.profile) for kind, _ in conditions.instances])
    if costs.profile is not None:  # moves cross the simulated network
        link = conditions.network.bytes_per_s
        costs = replace(costs, profile=replace(costs.profile, link_bytes_per_s=link))
    asks = registry.find("dispatch", preset.dispatch).reads_profile
    if not asks or (costs.profile and costs.profile.prefill_tokens_per_s is not None):
        return costs
    return replace(costs, profile=load_profile(ASSUMED_PROFILE))


def simulate(
    spec: ClusterSpec,
    requests: Iterable[SimRequest],
    *,
    until: float = 1e9,
    ended: Callable[[Record], None] | None = None,
    keeps_decisions: bool = False,
    failures: Sequence[Failure] = (),
    watch: Callable[[SimCluster], None] | None = None,
) -> Run:
    """Run until every request has ended, or ``until``; who has not ended then has no record.

    Requests come in order of arrival. With ``ended`` records go there, and none is kept.
    ``watch`` may set up samplers before it begins.
    """
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, spec, ended or records.append)
    cluster.keeps_decisions = keeps_decisions
    for failure in failures:
        kernel.at(failure.at, partial(_fail, cluster, failure))
    if watch is not None:
        watch(cluster)
    cluster.feed(iter(requests))
    while cluster.is_busy and kernel.now < until:
        kernel.run(min(until, kernel.now + _LOOK_EVERY))
    gpu_seconds = sum(
        w.spec.profile.num_gpus * (cluster.ended_at - w.started_at) for w in cluster.workers
    )
    num_passes = sum(w.device.num_passes for w in cluster.workers)
    num_preemptions = sum(w.num_preemptions for w in cluster.workers)
    ended_at = cluster.ended_at
    return Run(records, cluster.decisions, ended_at, gpu_seconds, num_passes, num_preemptions)


def _fail(cluster: SimCluster, failure: Failure) -> None:
    worker = cluster.worker(failure.instance)
    if worker is None:
        known = ", ".join(w.worker_id for w in cluster.workers)
        raise invalid("failures.instance", failure.instance, f"one that lives then: {known}")
    cluster.kill(failure.instance)
    if failure.back_after is not None:
        cluster.kernel.after(failure.back_after, partial(cluster.start_worker, worker.spec))
