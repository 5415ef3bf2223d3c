"""CPU seconds of a cluster's processes per token, preset by preset, on the same requests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster.offered import looped, replayed
from bench.cluster.processes import cpu_seconds
from bench.cluster.started import bench_options, started
from bench.demo.load import mix
from bench.serve.plan import Plan, timed
from bench.serve.replay import ReplayedRequest
from headway.errors import Code, HeadwayError
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts

_PATIENCE = 300.0
_WARM_UP = 20.0  # seconds in which its requests begin


@dataclass(frozen=True, slots=True)
class CpuSetting:
    """The clusters and their load: ``num_requests`` at ``rate`` requests/s, Poisson.

    ``least_pass_time``, seconds, gives engines one speed: batches are then as large under every
    preset, whatever else the machine does.
    """

    model: str
    workers: WorkerCounts
    max_running: int
    rate: float
    num_requests: int
    least_pass_time: float
    log_dir: Path

    def plan(self, seed: int) -> Plan:
        """Plan the requests of a seed: the demo's mix, at the same instants for every preset."""
        rng = random.Random(f"cpu {seed}")
        plan = mix(Path(self.model).name, self.num_requests, rng)
        seconds = self.num_requests / self.rate
        return timed(plan, sorted(rng.random() * seconds for _ in plan.requests))

    def options(self, policies: PolicyOptions) -> ClusterOptions:
        """Return the cluster of one preset."""
        worker = ("--max-running", str(self.max_running))
        pace = ("--least-pass-time", str(self.least_pass_time))
        return bench_options(self.model, policies, self.workers, *worker, *pace)


@dataclass(frozen=True, slots=True)
class CpuRun:
    """CPU seconds by process, and the tokens that were generated meanwhile."""

    preset: str
    seed: int
    seconds: Mapping[str, float]
    num_tokens: int

    @property
    def ms_per_token(self) -> float:
        """Milliseconds of all processes for a token."""
        return 1e3 * sum(self.seconds.values()) / self.num_tokens


async def run_once(setting: CpuSetting, policies: PolicyOptions, seed: int) -> CpuRun:
    """Serve a seed's requests under one preset; UNAVAILABLE where one of them fails."""
    plan = setting.plan(seed)
    async with started(setting.options(policies), setting.log_dir / policies.preset) as cluster:
        places = setting.max_running * (setting.workers.decode + setting.workers.unified)
        warm_up = replace(plan, requests=setting.plan(-seed).requests[: 8 * places])
        await looped(cluster.url, warm_up, 2 * places, _WARM_UP, _PATIENCE)
        before = _by_process(cluster)
        requests = await replayed(cluster.url, plan, within=len(plan.requests) + _PATIENCE)
        after = _by_process(cluster)
    seconds = {name: after[name] - before.get(name, 0.0) for name in after}
    return CpuRun(policies.preset, seed, seconds, _num_tokens(requests))


def _by_process(cluster: LocalCluster) -> dict[str, float]:
    pids = {each.spec.service_id: each.pid for each in cluster.supervisor.processes}
    return {name: cpu_seconds(pid) for name, pid in pids.items() if pid is not None}


def _num_tokens(requests: Sequence[ReplayedRequest]) -> int:
    for each in requests:
        if each.times is None:
            message = f"a request failed ({each.error_kind}): {each.error}"
            raise HeadwayError(Code.UNAVAILABLE, message)
    return sum(each.times.num_output_tokens for each in requests if each.times is not None)
