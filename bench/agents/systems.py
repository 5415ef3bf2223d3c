"""What answers the sessions: a URL, ``headway up``, or workers behind a session-hashing proxy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.runner.processes import Process, until_ok
from bench.runner.started import LiveTarget, bench_options, cluster_target, started
from results.output import num_cores
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port

HASHED = "hashed"
_PROXY_START = 30.0  # seconds
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class WorkersSetting:
    """The workers that all systems of a comparison have alike.

    ``least_pass_time`` in seconds, 0 for as fast as the machine can; ``kv_tokens`` of a worker, 0
    for its own choice; ``is_killed``: the leader is killed in the middle, so there is a standby.
    """

    model: str
    num_workers: int = 3
    device: str = "cpu"
    kv_tokens: int = 0
    least_pass_time: float = 0.0
    is_killed: bool = False

    def options(self, policies: PolicyOptions, num_workers: int) -> ClusterOptions:
        """Return a cluster of so many unified workers, each with the threads of one of all."""
        threads = max(1, num_cores() // self.num_workers)
        kv = ("--num-blocks", str(self.kv_tokens // _BLOCK_SIZE)) if self.kv_tokens else ()
        passes = ("--least-pass-time", str(self.least_pass_time))
        return bench_options(
            self.model,
            policies,
            WorkerCounts(0, 0, 0, num_workers),
            *("--num-threads", str(threads), *kv, *passes),
            schedulers=2 if self.is_killed and num_workers == self.num_workers else 1,
            device=self.device,
        )


@asynccontextmanager
async def endpoint(url: str) -> AsyncIterator[LiveTarget]:
    """Yield an endpoint that serves already."""
    yield LiveTarget(url)


def in_one_cluster(
    setting: WorkersSetting, policies: PolicyOptions, folder: Path
) -> AbstractAsyncContextManager[LiveTarget]:
    """Run ``headway up`` with all workers in one cluster."""
    return cluster_target(setting.options(policies, setting.num_workers), folder)


@asynccontextmanager
async def hashed(
    setting: WorkersSetting, policies: PolicyOptions, folder: Path
) -> AsyncIterator[LiveTarget]:
    """Run as many clusters as workers, one worker each, behind a proxy that hashes sessions."""
    async with AsyncExitStack() as stack:
        backends = []
        for number in range(setting.num_workers):
            starting = started(setting.options(policies, 1), folder / str(number + 1))
            backends.append((await stack.enter_async_context(starting)).url)
        yield LiveTarget(await _proxied(stack, backends, folder))


async def _proxied(stack: AsyncExitStack, backends: list[str], folder: Path) -> str:
    """Start the proxy in a process of its own; return its base URL once it answers."""
    port = free_port(1)
    command = [sys.executable, "-m", "bench.agents.proxy", "--port", str(port), *backends]
    proxy = stack.enter_context(Process("proxy", command, folder))
    url = f"http://127.0.0.1:{port}"
    await until_ok(proxy, f"{url}/v1/models", within=_PROXY_START)
    return url
