"""Clusters of this machine for a bench: their usual options, their start and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.runner.processes import cpu_seconds
from headway.errors import Code, HeadwayError
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port

_SERVICES = 8  # processes beside the workers, at most


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """A system that serves: its URL, its clusters, and ids of processes beside theirs, by name."""

    url: str
    clusters: tuple[LocalCluster, ...] = ()
    processes: Mapping[str, int] = field(default_factory=dict)

    @property
    def cluster(self) -> LocalCluster:
        """Return the one cluster of a target that has one."""
        (cluster,) = self.clusters
        return cluster

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds so far of every process, with what it has started, by name."""
        pids = dict(self.processes)
        for cluster in self.clusters:
            for each in cluster.supervisor.processes:
                if each.pid is not None:
                    pids[each.spec.service_id] = each.pid
        return {name: cpu_seconds(pid) for name, pid in pids.items()}


def bench_options(
    model: str,
    policies: PolicyOptions,
    workers: WorkerCounts,
    *worker_flags: str,
    has_metrics: bool = False,
    **others: Any,
) -> ClusterOptions:
    """Return a cluster on free ports; ``has_metrics``: its processes are scraped."""
    port = free_port(2 + _SERVICES + sum(workers.by_role().values()))
    return ClusterOptions(
        model=model,
        policies=policies,
        workers=workers,
        port=port,
        metrics_port=port + 2 if has_metrics else 0,
        drain_timeout=5.0,
        service_flags={"worker": worker_flags},
        **others,
    )


def keyed_options(
    lines: Iterable[str],
    folder: Path,
    model: str,
    preset: str,
    workers: WorkerCounts,
    *worker_flags: str,
) -> ClusterOptions:
    """Write a file of keys (``key_line``) into ``folder``; return the cluster that takes them.

    Without a line everybody may call.
    """
    text, file = "".join(f"{line}\n" for line in lines), folder / "keys"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return bench_options(
        model,
        PolicyOptions(preset),
        workers,
        *("--num-threads", "1", *worker_flags),
        log_level="warning",
        api_key_file=str(file) if text else "",
    )


@asynccontextmanager
async def cluster_target(
    options: ClusterOptions, folder: Path, within: float = 240.0
) -> AsyncIterator[LiveTarget]:
    """Run a cluster as the system of a comparison (``started``)."""
    async with started(options, folder, within) as cluster:
        yield LiveTarget(cluster.url, (cluster,))


@asynccontextmanager
async def started(
    options: ClusterOptions, folder: Path, within: float = 240.0
) -> AsyncIterator[LocalCluster]:
    """Run a cluster, its logs in ``folder``, which is made.

    HeadwayError for options that it refuses, or where it does not serve after ``within`` seconds.
    """
    refuse_wrong_options(options, folder)
    cluster = LocalCluster(options, folder)
    try:
        try:
            async with asyncio.timeout(within):
                await cluster.start()
        except TimeoutError:
            message = f"the cluster does not serve after {within:g} s: see {folder}/"
            raise HeadwayError(Code.UNAVAILABLE, message) from None
        yield cluster
    finally:
        await cluster.stop()
