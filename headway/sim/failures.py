"""Failures of a run: instances, gateways and schedulers that die, and what may be named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headway.bounds import Bounded, between
from headway.errors import invalid
from headway.sim.cluster import SimCluster
from headway.sim.spec import Instances, gateway_ids

SCHEDULER, GATEWAY = "scheduler", "gateway"


@dataclass(frozen=True, slots=True)
class Failure(Bounded):
    """An instance (``decode-3``, by role and number from 1) dies ``at`` so many seconds.

    Another of its kind is ordered ``back_after`` seconds later, if ever. ``scheduler`` is the
    leading scheduler: a standby reads its journal and leads when its lease has ended. ``gateway``,
    ``gateway-2`` and so on are gateways: the requests of one that dies are lost.
    """

    instance: str
    at: float = between(0, 1e9, default=0.0)
    back_after: float | None = between(0, 1e9, default=None)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.instance == SCHEDULER and self.back_after is not None:
            raise invalid("back_after", self.back_after, "left out: a standby leads after a lease")
        if self.instance.startswith(GATEWAY) and self.back_after is not None:
            raise invalid("back_after", self.back_after, "left out: the other gateways go on")

    def happen(self, cluster: SimCluster) -> None:
        """Let it die now; HeadwayError unless it lives."""
        if self.instance == SCHEDULER:
            cluster.lose_leader()
            return
        if self.instance.startswith(GATEWAY):
            cluster.lose_gateway(self.instance)
            return
        worker = cluster.worker(self.instance)
        if worker is None:
            known = ", ".join(w.worker_id for w in cluster.workers)
            raise invalid("failures.instance", self.instance, f"one that lives then: {known}")
        cluster.kill(self.instance)
        if self.back_after is not None:
            cluster.kernel.after(self.back_after, partial(cluster.start_worker, worker.spec))


def require_known(
    failures: Sequence[Failure], instances: Instances, num_gateways: int, *, may_grow: bool
) -> None:
    """Refuse a failure of what the cluster never has (HeadwayError).

    ``may_grow``: instances come by an autoscaler, too; their names are not known before.
    """
    named = [failure.instance for failure in failures if failure.instance != SCHEDULER]
    gateways = gateway_ids(num_gateways)
    known = _instance_ids(failures, instances)
    for name in named:
        if named.count(name) > 1:
            limit = "named once: who comes for one that has died has a name of its own"
            raise invalid("failures.instance", name, limit)
        if name.startswith(GATEWAY):
            if name not in gateways or sum(each in gateways for each in named) >= num_gateways:
                limit = f"a gateway that leaves another ({num_gateways} in all: set gateways)"
                raise invalid("failures.instance", name, limit)
        elif name not in known and not may_grow:
            limit = f"one of {', '.join(known)}, scheduler or a gateway"
            raise invalid("failures.instance", name, limit)


def _instance_ids(failures: Sequence[Failure], instances: Instances) -> list[str]:
    """Return the instances that there are at first, and those that may come for one that died."""
    roles = [kind.role.value for kind, count in instances for _ in range(count)]
    initial = [f"{role}-{number}" for number, role in enumerate(roles, start=1)]
    back = [each.instance for each in failures if each.back_after is not None]
    ordered = sorted({name.rpartition("-")[0] for name in back})
    numbers = range(len(initial) + 1, len(initial) + 1 + len(back))
    return [*initial, *(f"{role}-{number}" for number in numbers for role in ordered)]
