"""A real cluster of real processes for system tests: what ``headway up`` starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from openai import AsyncOpenAI

from cli import up
from headway.errors import Code, HeadwayError
from services.local import cluster as cluster_of
from services.local.store import free_port
from services.local.supervisor import SupervisedProcess, Supervisor
from services.runtime.store import Member, Store

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models" / "headway-mini")
START_PATIENCE = 300.0


@dataclass
class LocalCluster:
    """Processes by name, and where clients go."""

    supervisor: Supervisor
    store: Store
    base_url: str
    grpc_address: str
    lines: list[str]

    def process(self, service_id: str) -> SupervisedProcess:
        return next(p for p in self.supervisor.processes if p.spec.service_id == service_id)

    def kill(self, service_id: str) -> None:
        """SIGKILL, as a crash would."""
        pid = self.process(service_id).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    async def metric(self, name: str, service_id: str = "gateway") -> float:
        """The sum over its labels; of another service where ``--metrics-port`` was given."""
        base_url = self.base_url
        if service_id != "gateway":
            flags = self.process(service_id).spec.flags
            base_url = f"http://{flags[flags.index('--metrics-listen') + 1]}"
        async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
            text = (await client.get("/metrics")).text
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
        return sum(float(value) for value in values)

    def openai(self, timeout: float = 300) -> AsyncOpenAI:
        """A client that asks once, and waits for so many seconds."""
        url = f"{self.base_url}/v1"
        return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)

    async def workers(self) -> list[Member]:
        return await self.store.members("worker")

    def log_of(self, service_id: str) -> str:
        return self.process(service_id).log_path.read_text(errors="replace")


@asynccontextmanager
async def local_cluster(
    store_url: str, cluster: str, folder: Path, *flags: str, model: str = MODEL
) -> AsyncIterator[LocalCluster]:
    """Start what ``headway up`` starts with these flags, wait until everything serves, stop.

    Without a ``model`` the flags name a file of several.
    """
    port = free_port(2)
    one = ["--model", model] if model else []
    given = [*one, "--port", str(port), "--drain-timeout", "5", *flags]
    lines: list[str] = []
    started = cluster_of.LocalCluster(
        up.parse(given), folder, lines.append, store=store_url, name=cluster
    )
    store = await Store.connect(store_url, cluster)
    try:
        async with asyncio.timeout(START_PATIENCE):
            await started.start()
        yield LocalCluster(started.supervisor, store, started.url, f"127.0.0.1:{port + 1}", lines)
    finally:
        await started.stop()
        await store.close()


async def until(holds: Callable[[], Awaitable[bool]], patience: float = 300.0) -> None:
    """Poll, with a deadline; a store that does not answer at once is asked again."""
    async with asyncio.timeout(patience):
        while True:
            try:
                if await holds():
                    return
            except HeadwayError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
            await asyncio.sleep(0.05)


async def chat(
    client: AsyncOpenAI, prompt: str, *, begun: asyncio.Event | None = None, **options: object
) -> tuple[str, str]:
    """Reasoning and answer, streamed and put together; ``begun`` with the first of them."""
    stream = await client.chat.completions.create(  # type: ignore[call-overload]  # extra options
        model="headway-mini",
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        **{"temperature": 0, **options},
    )
    reasoning, answer = [], []
    async for chunk in stream:
        for choice in chunk.choices:
            reasoning.append(getattr(choice.delta, "reasoning_content", None) or "")
            answer.append(choice.delta.content or "")
            if begun is not None and (reasoning[-1] or answer[-1]):
                begun.set()
    return "".join(reasoning), "".join(answer)
