"""One simulated run: a preset on some instances, against some requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from headway.core.scheduler.events import Decision
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import Costs, policy_settings
from headway.errors import invalid
from headway.policies.packing.flow_control import FlowControl
from headway.presets import Preset
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.pace import Pace
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

Instances = Sequence[tuple[InstanceSpec, int]]
_LOOK_EVERY = 60.0
_SIMULATED = MappingProxyType({"countdown": "noisy-oracle", "bucket-mean": ""})
"""No hidden states here: a predictor of a given accuracy stands for the trained one."""
_ENDLESS = FlowControl(num_cycles=1 << 30)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run happens on. ``linger``: None for a round trip to the scheduler.

    ``max_running``: requests of a DP unit in one pass, 0 for any number. ``flow_control``: off
    unless given, so that overload shows as latency. ``pace``: of the machine, for one that is not
    always as fast as the profile says.
    """

    instances: Instances
    network: NetworkParams = field(default_factory=NetworkParams)
    report_interval: float = 0.5
    linger: float | None = None
    watermark: float = 0.1
    max_running: int = 0
    flow_control: FlowControl = _ENDLESS
    params: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: MappingProxyType({}))
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An instance (``decode-3``, by role and number from 1) dies ``at`` so many seconds.

    Another of its kind is ordered ``back_after`` seconds later, if ever.
    """

    at: float = 0.0
    instance: str = ""
    back_after: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it; seconds."""

    records: Sequence[Record]
    decisions: Sequence[Decision]
    ended_at: float
    gpu_seconds: float
    num_passes: int


def cluster_spec(preset: Preset, conditions: Conditions) -> ClusterSpec:
    """The preset's policies with its own parameters, and the conditions' over them."""
    limits = SchedulerSettings(
        flow_control=conditions.flow_control,
        max_waiting=1 << 30,
        kv_watermark=conditions.watermark,
    )
    found = policy_settings(preset.but({}, conditions.params), _costs(conditions), limits)
    batching, estimation = found.worker.batching, found.worker.estimation
    network = conditions.network
    round_trip = network.latency + network.dispatch_latency
    linger = conditions.linger if conditions.linger is not None else 1.1 * round_trip
    return ClusterSpec(
        instances=conditions.instances,
        scheduler=found.scheduler,
        batching=batching.name,
        batching_params=batching.params,
        estimation=_SIMULATED.get(estimation.name, estimation.name),
        estimation_params=estimation.params,
        max_running=conditions.max_running,
        watermark=conditions.watermark,
        report_interval=conditions.report_interval,
        linger=linger if found.worker.lingers else 0.0,
        network=network,
        pace=conditions.pace,
    )


def _costs(conditions: Conditions) -> Costs:
    """What requests and tokens cost on these instances, for policies that ask."""
    profile = conditions.instances[0][0].profile
    decode = next((k.profile.pass_time for k, _ in conditions.instances if k.role.decodes), None)
    return Costs(
        first_pass=_first_pass_time(conditions.instances),
        swap_per_token=2 * profile.swap_per_token if profile.host_capacity_tokens else 0.0,
        per_request=decode.per_request if decode is not None else 0.0,
        per_kv_token=decode.per_kv_token if decode is not None else 0.0,
    )


def _first_pass_time(instances: Instances) -> float:
    """A pass over half a chunk on the first kind that prefills: SBS's T̄ before any report."""
    profile = next((kind.profile for kind, _ in instances if kind.role.prefills), None)
    if profile is None:
        return 0.05
    return profile.pass_time.seconds(profile.chunk_tokens / 2, 0, 0, 0)


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
    return Run(records, cluster.decisions, cluster.ended_at, gpu_seconds, num_passes)


def _fail(cluster: SimCluster, failure: Failure) -> None:
    worker = cluster.worker(failure.instance)
    if worker is None:
        known = ", ".join(w.worker_id for w in cluster.workers)
        raise invalid("failures.instance", failure.instance, f"one that lives then: {known}")
    cluster.kill(failure.instance)
    if failure.back_after is not None:
        cluster.kernel.after(failure.back_after, partial(cluster.start_worker, worker.spec))
