"""What answers the sessions: a URL, ``headway up``, or workers behind a session-hashing proxy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.leader import kill_leader
from bench.cluster.processes import Process, until_answers
from bench.cluster.started import bench_options, started
from bench.serve.client import Client, Endpoint, RequestFailedError
from results.output import num_cores
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.store import free_port
from services.runtime.store import Store

HASHED = "hashed"
_PROXY_START = 30.0  # seconds
_BLOCK_SIZE = 16
Kill = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """A system that serves; ``kill`` ends the leader of its scheduler, where it has a standby."""

    url: str
    kill: Kill | None = None


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


@dataclass(frozen=True, slots=True)
class EndpointSystem:
    """An endpoint that serves already."""

    url: str

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return self.url

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AgentTarget]:
        """Yield it."""
        yield AgentTarget(self.url)


@dataclass(frozen=True, slots=True)
class ClusterSystem:
    """``headway up`` with all workers in one cluster."""

    name: str
    setting: WorkersSetting
    policies: PolicyOptions
    log_dir: Path

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AgentTarget]:
        """Start it, yield it, stop it."""
        async with AsyncExitStack() as stack:
            options = self.setting.options(self.policies, self.setting.num_workers)
            cluster = await stack.enter_async_context(started(options, self.log_dir / self.name))
            kill: Kill | None = None
            if self.setting.is_killed:
                store = await Store.connect(cluster.config.store, cluster.config.cluster)
                stack.push_async_callback(store.close)

                async def kill() -> None:
                    await kill_leader(cluster.supervisor, store)

            yield AgentTarget(cluster.url, kill)


@dataclass(frozen=True, slots=True)
class HashedSystem:
    """As many clusters as workers, one worker each, behind a proxy that hashes sessions."""

    setting: WorkersSetting
    policies: PolicyOptions
    log_dir: Path

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return HASHED

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AgentTarget]:
        """Start the clusters one by one, then the proxy; stop all."""
        async with AsyncExitStack() as stack:
            backends = []
            for number in range(self.setting.num_workers):
                folder = self.log_dir / f"{HASHED}-{number + 1}"
                options = self.setting.options(self.policies, 1)
                backends.append((await stack.enter_async_context(started(options, folder))).url)
            yield AgentTarget(await _proxied(stack, backends, self.log_dir))


System = EndpointSystem | ClusterSystem | HashedSystem


async def _proxied(stack: AsyncExitStack, backends: list[str], folder: Path) -> str:
    """Start the proxy in a process of its own; return its base URL once it answers."""
    port = free_port(1)
    command = [sys.executable, "-m", "bench.agents.proxy", "--port", str(port), *backends]
    proxy = stack.enter_context(Process("proxy", command, folder))
    url = f"http://127.0.0.1:{port}"
    client = Client(Endpoint.parse(url), _PROXY_START)
    stack.callback(client.close)

    async def ask() -> str:
        try:
            await client.get("/v1/models")
        except RequestFailedError as error:
            return str(error)
        return ""

    await until_answers(proxy, ask, within=_PROXY_START)
    return url
