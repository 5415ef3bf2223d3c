"""Autoscaling on virtual time: the real autoscaler's core, over simulated instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headway.cluster import Role
from headway.core.autoscaler.core import (
    AutoscalerCore,
    AutoscalerEvent,
    FleetReport,
    PublishTargets,
    RateReport,
    role_changes,
)
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.errors import invalid
from headway.messages import Drain
from headway.policies.scaling import RateMeter
from headway.policies.scaling.protocol import Fleet, PoolLoad, Scaling, Targets
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.node import Node
from headway.sim.worker import InstanceSpec, SimWorker

ROLES = (Role.PREFILL, Role.DECODE, Role.CONVERTIBLE, Role.UNIFIED)


@dataclass(slots=True)
class _Used:
    """Devices' busy seconds when last looked at."""

    at: float = 0.0
    busy: float = 0.0


class SimAutoscaler:
    """Feeds an autoscaler's core once an interval and does what it says.

    ``kinds``: what an instance of a role is. A pool shrinks by draining its youngest instance,
    which goes when it holds nothing. ``predict`` tells the output tokens that the rates count for a
    request; left out, what its gateway expects.
    """

    def __init__(
        self,
        cluster: SimCluster,
        policy: Scaling,
        kinds: Mapping[Role, InstanceSpec],
        *,
        settings: AutoscalerSettings | None = None,
        predict: Callable[[SimRequest], float] | None = None,
    ) -> None:
        self._predict = predict or cluster.expected_tokens
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._policy = policy
        self._kinds = kinds
        settings = settings or AutoscalerSettings()
        self._interval = interval = settings.interval
        given = {Role.CONVERTIBLE: policy.converts, Role.UNIFIED: policy.unifies}
        self._roles = [role for role in ROLES if given.get(role, True)]
        self._meter = RateMeter(now=cluster.kernel.now)
        self._num_produced = 0
        self._ordered: dict[str, tuple[Role, float]] = {}  # not running yet: role, since when
        self._draining: dict[str, None] = {}
        self._used: dict[str, _Used] = {}
        self.history: list[tuple[float, Targets, int]] = []
        cluster.on_arrival = self._arrived
        core = AutoscalerCore(policy, now=self._kernel.now + interval, settings=settings)
        self._node: Node[AutoscalerEvent, PublishTargets] = Node(self._kernel, core, self._perform)
        self._kernel.after(0.99 * interval, self._look)

    @property
    def num_gpus(self) -> int:
        """Accelerators that run or start now."""
        running = sum(w.spec.profile.num_gpus for w in self._cluster.workers)
        return running + sum(self._kinds[r].profile.num_gpus for r, _ in self._ordered.values())

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds up to now."""
        return self._cluster.gpu_seconds(self._kernel.now)

    # --- what the core is told --------------------------------------------------------

    def _arrived(self, request: SimRequest) -> None:
        self._meter.arrived(request.num_prompt_tokens, self._predict(request), request.standing)

    def _look(self) -> None:
        """Reports right before each decision."""
        now = self._kernel.now
        self._notice_joined()
        self._remove_drained()
        self._node.post(self._rates(now))
        self._node.post(FleetReport(self._fleet()))
        self._kernel.after(self._interval, self._look)

    def _notice_joined(self) -> None:
        for worker_id in [w for w in self._ordered if self._cluster.worker(w) is not None]:
            del self._ordered[worker_id]

    def _rates(self, now: float) -> RateReport:
        before, self._num_produced = self._num_produced, self._cluster.num_produced
        self._meter.produced(self._num_produced - before)
        rates, window = self._meter.read(now=now, num_burst=self._cluster.num_burst_tokens)
        return RateReport.of("gateway", rates, window, now)

    def _fleet(self) -> Fleet:
        prefill, decode, convertible, unified = (self._pool(role) for role in ROLES)
        status = self._cluster.scheduler_core.status()
        waiting = sum(p.num_waiting - p.yielding.num_requests for p in status.pools)
        backlog = sum(p.backlog_tokens - p.yielding.num_tokens for p in status.pools)
        first = replace(
            prefill,
            num_requests=prefill.num_requests + waiting,
            backlog_tokens=prefill.backlog_tokens + backlog,
        )
        measured = self._cluster.scheduler_core.fleets(now=self._kernel.now) or {}
        samples = [sample for fleet in measured.values() for sample in fleet.samples]
        return Fleet(first, decode, convertible, unified, samples)

    def _pool(self, role: Role) -> PoolLoad:
        workers = [
            w
            for w in self._cluster.workers
            if w.spec.role is role and w.worker_id not in self._draining
        ]
        loads = [load for w in workers for load in w.core.loads]
        num_blocks = sum(len(w.core.loads) * w.num_blocks for w in workers)
        num_free = sum(load.num_free_blocks for load in loads)
        return PoolLoad(
            num_ready=len(workers),
            num_starting=self._num_ordered(role),
            num_requests=sum(w.core.num_held for w in workers),
            backlog_tokens=sum(load.queued_prefill_tokens for load in loads),
            busy=self._busy(workers),
            memory=1 - num_free / num_blocks if num_blocks else 0.0,
        )

    def _busy(self, workers: list[SimWorker]) -> float:
        """The share of the time since the last look that their devices computed."""
        now, shares = self._kernel.now, 0.0
        for worker in workers:
            used = self._used.setdefault(worker.worker_id, _Used(worker.started_at))
            busy = worker.device.busy
            if now > used.at:
                shares += min(1.0, (busy - used.busy) / (now - used.at))
            used.at, used.busy = now, busy
        return shares / len(workers) if workers else 0.0

    # --- what it says -----------------------------------------------------------------

    def _perform(self, action: PublishTargets) -> None:
        self._notice_joined()
        targets = action.targets
        wanted = {role: getattr(targets, f"num_{role.value}") for role in self._roles}
        if self._policy.unifies:
            self._change_roles(wanted)
        for role, number in wanted.items():
            self._steer(role, number)
        self.history.append((self._kernel.now, targets, self.num_gpus))

    def _serving(self, role: Role) -> list[str]:
        """Return the instances of a role that do not drain, oldest first."""
        return [
            w.worker_id
            for w in self._cluster.workers
            if w.spec.role is role and w.worker_id not in self._draining
        ]

    def _change_roles(self, wanted: Mapping[Role, int]) -> None:
        """Give instances of a shrinking pool the role of a growing one, as the live steering."""
        there = {
            role.value: len(self._serving(role)) + self._num_ordered(role) for role in self._roles
        }
        numbers = {role.value: number for role, number in wanted.items()}
        for source, target, number in role_changes(there, numbers):
            before, after = Role(source), Role(target)
            if self._kinds[before].profile != self._kinds[after].profile:
                continue  # a running instance keeps its chunk
            for worker_id in self._serving(before)[::-1][:number]:
                self._cluster.change_role(worker_id, after)

    def _num_ordered(self, role: Role) -> int:
        return sum(r is role for r, _ in self._ordered.values())

    def _steer(self, role: Role, wanted: int) -> None:
        workers = self._serving(role)
        ordered = [w for w, (r, _) in self._ordered.items() if r is role]
        for _ in range(wanted - len(workers) - len(ordered)):
            kind = self._kinds[role]
            worker_id = self._cluster.start_worker(kind, running=self._policy.loads_live)
            self._ordered[worker_id] = (role, self._kernel.now)
        num_over = max(0, len(workers) + len(ordered) - wanted)
        for worker_id in workers[max(0, len(workers) - num_over) :]:
            self._draining[worker_id] = None
            worker = self._cluster.worker(worker_id)
            if worker is not None:
                worker.post(Drain())

    def _remove_drained(self) -> None:
        for worker_id in list(self._draining):
            worker = self._cluster.worker(worker_id)
            if worker is None or worker.core.num_held == 0:
                del self._draining[worker_id]
                self._cluster.kill(worker_id)


def autoscale(cluster: SimCluster) -> SimAutoscaler:
    """Let a cluster's instances follow its load, as its spec says; they begin as they are.

    Convertible decoders cost what decoders do, and roles that are not there what unified ones do.
    HeadwayError without prefill or decode instances, unless there are unified ones that may change.
    """
    spec = cluster.spec
    assert spec.scaling is not None, "the spec has a scaling policy"
    policy: Scaling = spec.scaling.make()
    kinds = {kind.role: kind for kind, _ in reversed(spec.instances)}
    unified = kinds.get(Role.UNIFIED) if policy.unifies else None
    for role in (Role.PREFILL, Role.DECODE):
        if role not in kinds and unified is not None:
            kinds[role] = replace(unified, role=role)
        if role not in kinds:
            raise invalid("instances", f"no {role.value}", "prefill and decode ones to autoscale")
    for role in (Role.CONVERTIBLE, Role.UNIFIED):
        kinds.setdefault(role, replace(kinds[Role.DECODE], role=role))
    counts = [sum(n for kind, n in spec.instances if kind.role is role) for role in ROLES]
    prefill, decode, convertible, together = (PoolLoad(num_ready=count) for count in counts)
    policy.begin(Fleet(prefill, decode, convertible, together))
    return SimAutoscaler(cluster, policy, kinds, settings=spec.autoscaling.settings())
