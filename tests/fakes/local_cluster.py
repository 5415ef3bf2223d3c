"""A real cluster of real processes for system tests: what ``headway up`` starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from headway.errors import Code, HeadwayError
from services.local import up
from services.local.store import free_port
from services.local.supervisor import SupervisedProcess, Supervisor
from services.runtime.config import ServiceConfig
from services.runtime.store import Member, Store

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models" / "headway-mini")
START_PATIENCE = 120.0


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
        async with httpx.AsyncClient(base_url=base_url) as client:
            text = (await client.get("/metrics")).text
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
        return sum(float(value) for value in values)

    async def workers(self) -> list[Member]:
        return await self.store.members("worker")

    def log_of(self, service_id: str) -> str:
        return self.process(service_id).log_path.read_text(errors="replace")


@asynccontextmanager
async def local_cluster(
    store_url: str, cluster: str, folder: Path, *flags: str, every: tuple[str, ...] = ()
) -> AsyncIterator[LocalCluster]:
    """Start, wait until everything serves, stop. ``every`` service is given those flags."""
    port = free_port(2)
    args = up.parse(["--model", MODEL, "--port", str(port), "--drain-timeout", "5", *flags])
    config = ServiceConfig(
        service_id="supervisor", store=store_url, cluster=cluster, drain_timeout=5.0
    )
    lines: list[str] = []
    specs = up.process_specs(args, num_cores=2)
    specs = [replace(spec, flags=(*spec.flags, *every)) for spec in specs]
    supervisor = Supervisor(specs, config, folder, lines.append)
    scaler = up.make_scaler(args, supervisor, config)
    store = await Store.connect(store_url, cluster)
    try:
        await supervisor.start()
        if scaler is not None:
            await scaler.start()
        async with asyncio.timeout(START_PATIENCE):
            await supervisor.serving()
        yield LocalCluster(
            supervisor, store, f"http://127.0.0.1:{port}", f"127.0.0.1:{port + 1}", lines
        )
    finally:
        if scaler is not None:
            await scaler.stop()
        await supervisor.stop()
        await store.close()


async def until(holds: Callable[[], Awaitable[bool]], patience: float = 60.0) -> None:
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
