"""The cluster, the load and the kills of ``headway bench takeover``."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster.leader import kill_leader, next_leader
from bench.cluster.offered import num_resubmitted
from bench.cluster.started import bench_options, started
from bench.serve.client import Client, Endpoint, RequestFailedError, error_text
from bench.serve.plan import PATHS
from bench.serve.sse import DONE, Delta, read_delta
from services.local.options import PolicyOptions, WorkerCounts
from services.local.supervisor import Supervisor
from services.runtime.store import Store

_PATIENCE = 120.0
_PROMPT = "Add 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22."


@dataclass(frozen=True, slots=True)
class Kill:
    """Seconds from one SIGKILL to the next election, and to a new request's first token."""

    elected: float
    served: float


@dataclass(slots=True)
class Takeovers:
    """The kills, and what became of the answers meanwhile."""

    kills: list[Kill] = field(default_factory=list)
    num_whole: int = 0
    num_resubmitted: int = 0
    num_wrong: int = 0


@dataclass(frozen=True, slots=True)
class _Cluster:
    supervisor: Supervisor
    store: Store
    client: Client
    url: str
    body: bytes


async def measure(model: str, num_kills: int, num_streams: int, num_tokens: int) -> Takeovers:
    """Kill the leader so often, the answers of so many streams compared all the time."""
    takeovers = Takeovers()
    async with _running(model, num_tokens) as cluster:
        expected = await _answer(cluster)
        load = [
            asyncio.create_task(_load(cluster, expected, takeovers)) for _ in range(num_streams)
        ]
        for _ in range(num_kills):
            await cluster.supervisor.serving()  # the killed one stands by again
            await asyncio.sleep(1.0)
            takeovers.kills.append(await _kill(cluster))
        takeovers.num_resubmitted = await num_resubmitted(cluster.url)
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    return takeovers


@asynccontextmanager
async def _running(model: str, num_tokens: int) -> AsyncIterator[_Cluster]:
    options = bench_options(model, PolicyOptions(), WorkerCounts(), schedulers=2)
    body = {
        "model": Path(model).name,
        "messages": [{"role": "user", "content": _PROMPT}],
        "stream": True,
        "temperature": 0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
    }
    with tempfile.TemporaryDirectory(prefix="headway-logs-") as folder:
        async with AsyncExitStack() as stack:
            starting = started(options, Path(folder), _PATIENCE)
            cluster = await stack.enter_async_context(starting)
            config = cluster.config
            store = await Store.connect(config.store, config.cluster)
            stack.push_async_callback(store.close)
            client = Client(Endpoint.parse(cluster.url), _PATIENCE)
            stack.callback(client.close)
            content = json.dumps(body).encode()
            yield _Cluster(cluster.supervisor, store, client, cluster.url, content)


# --- load -----------------------------------------------------------------------------


async def _load(cluster: _Cluster, expected: str, takeovers: Takeovers) -> None:
    """Ask for one stream after the other until it is cancelled."""
    while True:
        try:
            is_whole = await _answer(cluster) == expected
        except RequestFailedError:
            is_whole = False
        takeovers.num_whole += is_whole
        takeovers.num_wrong += not is_whole


async def _answer(cluster: _Cluster, first: asyncio.Event | None = None) -> str:
    """Return all that was streamed; ``first`` is set with the first of it."""
    said: list[str] = []

    def take(data: bytes, now: float) -> None:
        delta = Delta() if data == DONE else read_delta(data)
        said.append(delta.reasoning or delta.answer)
        if said[-1] and first is not None:
            first.set()

    response = await cluster.client.post(PATHS["chat"], cluster.body, take)
    if response.status != 200:
        raise RequestFailedError(f"HTTP {response.status}", error_text(response.body))
    return "".join(said)


# --- kills ----------------------------------------------------------------------------


async def _kill(cluster: _Cluster) -> Kill:
    leader = await kill_leader(cluster.supervisor, cluster.store)
    began_at = time.monotonic()
    first = asyncio.Event()
    request = asyncio.create_task(_answer(cluster, first))
    await next_leader(cluster.store, above=leader.fencing_token)
    elected = time.monotonic() - began_at
    async with asyncio.timeout(_PATIENCE):
        await first.wait()
    served = time.monotonic() - began_at
    await request
    return Kill(elected, served)
