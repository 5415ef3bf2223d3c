"""Samples of a run, for plots: loads over time, and every pass of an instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from headway.cluster import UnitId
from headway.sim.cluster import SimCluster
from headway.sim.device import PassTaken


class Sample(NamedTuple):
    """A sample of one instant: KV tokens of every DP unit, and instances that run."""

    at: float
    kv_tokens: dict[UnitId, int]
    num_instances: int


@dataclass(slots=True)
class Sampler:
    """Looks every ``every`` seconds while requests are open, at most ``most`` times.

    ``instance``: whose passes are kept, by id; "" for the first that there is.
    """

    every: float = 1.0
    most: int = 20_000
    instance: str = ""
    samples: list[Sample] = field(default_factory=list)
    passes: list[PassTaken] = field(default_factory=list)

    def watch(self, cluster: SimCluster) -> None:
        """Begin with this run."""
        cluster.kernel.after(0.0, partial(self._begin, cluster))

    def _begin(self, cluster: SimCluster) -> None:
        workers = {w.worker_id: w for w in cluster.workers}
        if workers:
            chosen = workers.get(self.instance) or cluster.workers[0]
            chosen.device.on_pass = self._passed
        self._look(cluster)

    def _passed(self, taken: PassTaken) -> None:
        if len(self.passes) < self.most:
            self.passes.append(taken)

    def _look(self, cluster: SimCluster) -> None:
        loads = {
            UnitId(worker.worker_id, load.unit): load.kv_tokens
            for worker in cluster.workers
            for load in worker.core.loads
        }
        self.samples.append(Sample(cluster.kernel.now, loads, len(cluster.workers)))
        if cluster.is_busy and len(self.samples) < self.most:
            cluster.kernel.after(self.every, partial(self._look, cluster))
