"""What answers the sessions: a URL, ``headway up``, or workers behind a session-hashing proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.leader import kill_leader
from bench.cluster.offered import start_within
from bench.cluster.processes import Process
from bench.serve.client import Client, Endpoint, RequestFailedError
from headway.errors import Code, HeadwayError
from results.output import num_cores
from services.local.cluster import LocalCluster
from services.local.options import ClusterOptions, PolicyOptions, WorkerCounts
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port
from services.runtime.store import Store

HASHED = "hashed"
_START, _PROXY_START, _POLL = 240.0, 30.0, 0.1
_SERVICES = 8  # processes beside the workers, at most
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
        port = free_port(2 + _SERVICES + num_workers)
        threads = max(1, num_cores() // self.num_workers)
        kv = ("--num-blocks", str(self.kv_tokens // _BLOCK_SIZE)) if self.kv_tokens else ()
        passes = ("--least-pass-time", str(self.least_pass_time))
        return ClusterOptions(
            model=self.model,
            policies=policies,
            workers=WorkerCounts(0, 0, 0, num_workers),
            schedulers=2 if self.is_killed and num_workers == self.num_workers else 1,
            device=self.device,
            port=port,
            drain_timeout=5.0,
            service_flags={"worker": ("--num-threads", str(threads), *kv, *passes)},
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
            cluster = await _started(stack, options, self.log_dir / self.name)
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
                backends.append((await _started(stack, options, folder)).url)
            yield AgentTarget(await _proxied(stack, backends, self.log_dir))


System = EndpointSystem | ClusterSystem | HashedSystem


async def _started(stack: AsyncExitStack, options: ClusterOptions, folder: Path) -> LocalCluster:
    refuse_wrong_options(options, folder)  # makes the folder
    cluster = LocalCluster(options, folder)
    stack.push_async_callback(cluster.stop)
    await start_within(cluster, _START)
    return cluster


async def _proxied(stack: AsyncExitStack, backends: list[str], folder: Path) -> str:
    """Start the proxy in a process of its own; return its base URL once it answers."""
    port = free_port(1)
    command = [sys.executable, "-m", "bench.agents.proxy", "--port", str(port), *backends]
    proxy = stack.enter_context(Process("proxy", command, folder))
    url = f"http://127.0.0.1:{port}"
    client = Client(Endpoint.parse(url), _PROXY_START)
    stack.callback(client.close)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _PROXY_START
    while loop.time() < give_up_at:
        proxy.check()
        try:
            await client.get("/v1/models")
        except RequestFailedError:
            await asyncio.sleep(_POLL)
        else:
            return url
    raise HeadwayError(Code.UNAVAILABLE, f"the proxy does not answer: {proxy.last_words()}")
