"""A simulated cluster in full: instances, policies, settings of all cores, wires and paces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType

from headway.bounds import Bounded, between, over
from headway.core.autoscaler.budget import Budget
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.settings import Policy
from headway.core.worker.settings import WorkerSettings
from headway.policies.scaling.fixed import MAX_INSTANCES
from headway.sim.lengths import REASONING_END
from headway.sim.network import NetworkParams
from headway.sim.pace import MeasuredPace
from headway.sim.worker import InstanceSpec

MOST_STEPS = 1 << 20
SIMULATED_WORKER = WorkerSettings(
    max_steps=MOST_STEPS, end_of_reasoning=(REASONING_END,), swaps_beside=True
)
SARATHI = Policy("batching", "sarathi", MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Autoscaling(Bounded):
    """Bounds of both pools, by the names and defaults of the live autoscaler's options.

    ``scale_down_delay``: seconds of lower need before a pool shrinks. ``interval``: seconds
    between decisions. ``budget``: most instances of all roles together, 0 for no limit.
    ``max_unified``: most unified ones, 0 for prefillers and decoders alone.
    """

    min_prefill: int = between(0, MAX_INSTANCES, default=1)
    max_prefill: int = between(0, MAX_INSTANCES, default=10)
    min_decode: int = between(0, MAX_INSTANCES, default=1)
    max_decode: int = between(0, MAX_INSTANCES, default=10)
    scale_down_delay: float = between(0, 86_400, default=10.0)
    interval: float = over(0, 3600, default=1.0)
    budget: int = between(0, MAX_INSTANCES, default=0)
    max_unified: int = between(0, MAX_INSTANCES, default=0)

    def numbers(self) -> Mapping[str, object]:
        """Return what a scaling policy may be told."""
        return asdict(self)

    def settings(self) -> AutoscalerSettings:
        """Return the core's settings; its budget keeps both pools' minimum."""
        budget = Budget(self.budget, self.min_prefill, self.min_decode)
        return AutoscalerSettings(interval=self.interval, budget=budget)


Instances = Sequence[tuple[InstanceSpec, int]]
"""Kinds of instances, and how many of each."""


def gateway_ids(num_gateways: int) -> Sequence[str]:
    """Return the names of so many gateways."""
    return "gateway", *(f"gateway-{number}" for number in range(2, num_gateways + 1))


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster: its instances, its policies and the settings of its cores."""

    instances: Instances
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = SIMULATED_WORKER
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    batching: Policy = SARATHI
    estimation: Policy | None = None
    counted: Policy | None = None
    """The estimation policy of instances whose engine shows no hidden states: the live one."""
    scaling: Policy | None = None
    """The autoscaler's policy; None for instances that stay."""
    autoscaling: Autoscaling = field(default_factory=Autoscaling)
    network: NetworkParams = field(default_factory=NetworkParams)
    num_gateways: int = 1
    """Gateways, which clients take in turn."""
    prediction_seconds: float = 0.0
    """Seconds that a prediction from a hidden state adds to the pass that it is made in.

    Workers then predict as live ones are asked to, and every pass has a single step.
    """
    pace: MeasuredPace | None = None
    """The pace of machines that are not always as fast as their profiles say.

    Each instance begins somewhere else on it, and every pass has a single step.
    """

    def with_lives(self, most: int) -> ClusterSpec:
        """Return a copy whose gateways keep the lives of so many ended requests."""
        gateway = replace(self.gateway, num_lives=most)
        return replace(self, gateway=gateway, worker=replace(self.worker, tells_lives=True))

    @property
    def gateway_ids(self) -> Sequence[str]:
        """The names of its gateways."""
        return gateway_ids(self.num_gateways)
