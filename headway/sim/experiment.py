"""Runs a preset on simulated instances, against requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import cast

from headway.bounds import Bounded, between
from headway.core.defaults import SIMULATED_REPORT_INTERVAL
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.events import Decision
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import Policy, policy_settings, scaling_policy
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.life.record import LifeRecord
from headway.policies import registry
from headway.policies.packing.flow_control import FlowControl
from headway.policies.scaling import Scaling
from headway.presets import SCALED_BY_PROFILE, Preset
from headway.sim.autoscaling import autoscale
from headway.sim.cluster import SIMULATED_WORKER, ClusterSpec, SimCluster, SimRequest
from headway.sim.collection import SeldomCollected
from headway.sim.failures import SCHEDULER, Failure
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.pace import MeasuredPace
from headway.sim.records import Record
from headway.sim.sessions import SessionLoad, SessionTask
from headway.sim.spec import Autoscaling, Instances

_LOOK_EVERY = 60.0
_LIVE = WorkerSettings()
_LIVE_GATEWAY = GatewaySettings()
_ENDLESS = 1 << 30


@dataclass(frozen=True, slots=True)
class ServiceLimits(Bounded):
    """Limits at which a request is refused or ended, 0 for none; by default those of live services.

    ``flow_control_cycles``: cycles left over before throttling, 429 at twice as many.
    ``max_waiting``: requests without a first token, then 429. ``request_timeout``: the longest
    that a request may take, seconds.
    """

    flow_control_cycles: int = between(0, _ENDLESS, default=FlowControl().num_cycles)
    max_waiting: int = between(0, _ENDLESS, default=_LIVE_GATEWAY.max_waiting)
    request_timeout: float = between(0, 1e9, default=_LIVE_GATEWAY.request_timeout)


UNLIMITED = ServiceLimits(0, 0, 0)
"""No limits: overload shows as latency and not as refusals, as the papers count it."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a run: instances, network, limits, and what changes of every preset.

    ``linger``: None for a round trip to the scheduler. ``max_running``: requests of a DP unit in
    one pass, 0 for any number. ``pace``: of a machine that is not always as fast as its profile
    says. ``autoscaling``: None for instances that stay. ``predictor``: parameters of
    ``measured-oracle``, which then stands for a trained predictor; None for ``noisy-oracle``.
    ``prediction_seconds``: what a prediction from a hidden state adds to the pass that it is made
    in.
    """

    instances: Instances
    network: NetworkParams = field(default_factory=NetworkParams)
    report_interval: float = SIMULATED_REPORT_INTERVAL
    linger: float | None = None
    watermark: float = _LIVE.watermark
    max_running: int = _LIVE.max_running
    limits: ServiceLimits = ServiceLimits()
    policies: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    params: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))
    pace: MeasuredPace | None = None
    autoscaling: Autoscaling | None = None
    num_gateways: int = 1
    predictor: Mapping[str, object] | None = None
    prediction_seconds: float = 0.0

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
class Run:
    """Results of a run; seconds.

    ``tasks``: of a load of sessions. ``num_asked_tokens``, ``num_hit_tokens``: of prompts, as
    instances admitted them, and how many of these were cached.
    """

    records: Sequence[Record]
    decisions: Sequence[Decision]
    ended_at: float
    gpu_seconds: float
    num_passes: int
    num_preemptions: int = 0
    lives: Sequence[LifeRecord] = ()
    """Records of all requests, in the order of their ends, where the run was to keep them."""
    tasks: Sequence[SessionTask] = ()
    num_asked_tokens: int = 0
    num_hit_tokens: int = 0

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were cached where they were admitted."""
        return self.num_hit_tokens / max(1, self.num_asked_tokens)


def cluster_spec(preset: Preset, conditions: Conditions) -> ClusterSpec:
    """Return the preset's policies with its own parameters, and the conditions' over them."""
    preset = preset.but(conditions.policies, conditions.params)
    network, limits = conditions.network, conditions.limits
    round_trip = network.costs.report + network.costs.dispatch
    costs = _costs(conditions)
    settings = policy_settings(
        preset,
        costs,
        SchedulerSettings(
            flow_control=FlowControl(limits.flow_control_cycles or _ENDLESS),
            max_waiting=limits.max_waiting or _ENDLESS,
            kv_watermark=conditions.watermark,
            prefix_hits=True,
            measures_work=conditions.autoscaling is not None,
        ),
        replace(
            SIMULATED_WORKER,
            watermark=conditions.watermark,
            report_interval=conditions.report_interval,
            linger=1.1 * round_trip if conditions.linger is None else conditions.linger,
            max_running=conditions.max_running,
        ),
        GatewaySettings(
            max_waiting=limits.max_waiting or _ENDLESS,
            request_timeout=limits.request_timeout or 1e9,
        ),
    )
    estimation = _estimation(settings.estimation, conditions.predictor)
    predicting = conditions.prediction_seconds if settings.estimation.answer.simulated_as else 0.0
    worker = settings.worker
    if predicting and estimation is not None:
        every = estimation.checked().interval
        worker = replace(worker, predict_every=every, max_steps=1)
    return ClusterSpec(
        instances=conditions.instances,
        scheduler=settings.scheduler,
        worker=worker,
        prediction_seconds=predicting,
        batching=settings.batching,
        estimation=estimation,
        counted=settings.estimation,
        gateway=settings.gateway,
        scaling=_scaling(preset, costs, conditions.autoscaling),
        autoscaling=conditions.autoscaling or Autoscaling(),
        network=network,
        num_gateways=conditions.num_gateways,
        pace=conditions.pace,
    )


def _estimation(own: Policy, predictor: Mapping[str, object] | None) -> Policy | None:
    """Return what stands for a preset's policy where there are no hidden states."""
    name = own.answer.simulated_as
    if name is None:
        return own
    if name and predictor is not None:
        return Policy(own.question, "measured-oracle", {**own.params, **predictor})
    return replace(own, name=name) if name else None


def _scaling(preset: Preset, costs: Costs, bounds: Autoscaling | None) -> Policy | None:
    """Return the autoscaler's policy; a preset whose own keeps all instances has another's."""
    if bounds is None:
        return None
    own = cast("type[Scaling]", registry.find("scaling", preset.scaling).make)
    scaled = preset if own.scales else preset.but({"scaling": SCALED_BY_PROFILE})
    return scaling_policy(scaled, costs, bounds.numbers())


def _costs(conditions: Conditions) -> Costs:
    """Return what requests and tokens cost on these instances, for policies that ask."""
    costs = Costs.of([(kind.role, kind.profile) for kind, _ in conditions.instances])
    # moves cross the simulated network
    return replace(costs, link_bytes_per_s=conditions.network.bytes_per_s)


def simulate(
    spec: ClusterSpec,
    load: Iterable[SimRequest] | SessionLoad,
    *,
    until: float = 1e9,
    ended: Callable[[Record], None] | None = None,
    keeps_decisions: bool = False,
    keeps_lives: bool = False,
    failures: Sequence[Failure] = (),
    watch: Callable[[SimCluster], None] | None = None,
) -> Run:
    """Run until every request has ended, or ``until``; who has not ended then has no record.

    ``load``: requests in order of arrival, or sessions. With ``ended`` records go there, and none
    is kept. ``watch`` may set up samplers before it begins.
    """
    kernel, records = Kernel(), list[Record]()
    if keeps_lives:
        spec = spec.with_lives(_ENDLESS)
    if any(failure.instance == SCHEDULER for failure in failures):
        spec = replace(spec, scheduler=replace(spec.scheduler, persists=True))
    cluster = SimCluster(kernel, spec, ended or records.append)
    cluster.keeps_decisions = keeps_decisions
    for failure in failures:
        kernel.at(failure.at, partial(failure.happen, cluster))
    if spec.scaling is not None:
        autoscale(cluster)
    if watch is not None:
        watch(cluster)
    cluster.serve(load)
    with SeldomCollected():
        while cluster.is_busy and kernel.now < until:
            kernel.run(min(until, kernel.now + _LOOK_EVERY))
    return Run(
        records,
        cluster.decisions,
        cluster.ended_at,
        cluster.gpu_seconds(cluster.ended_at),
        cluster.num_passes,
        cluster.num_preemptions,
        tuple(cluster.lives),
        cluster.tasks,
        cluster.prefix_counts.num_asked_tokens,
        cluster.prefix_counts.num_hit_tokens,
    )
