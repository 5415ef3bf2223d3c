"""A real gateway with real gRPC, HTTP and store, in front of an emulated scheduler and worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from bench.gateway.emulated_worker import Emulated
from services.gateway.auth import key_line
from services.gateway.config import GatewayConfig
from services.gateway.service import GatewayService, build
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Store
from tests.fakes.tiny_model import write_model

GATEWAY_ID = "gateway-under-test"


@dataclass
class Cluster:
    """What a test sees of it."""

    service: GatewayService
    emulated: Emulated
    grpc_address: str
    store: Store
    _clients: dict[str, AsyncOpenAI] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.service.http_address}"

    @property
    def port(self) -> int:
        return int(self.service.http_address.rpartition(":")[2])

    def openai(self, key: str = "none") -> AsyncOpenAI:
        """The official client, unchanged; without its retries, so that errors are seen."""
        if key not in self._clients:
            self._clients[key] = AsyncOpenAI(
                api_key=key, base_url=f"{self.url}/v1", max_retries=0, timeout=300
            )
        return self._clients[key]

    def http(self) -> httpx.AsyncClient:
        headers = {"content-type": "application/json"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=300)

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels."""
        async with self.http() as client:
            lines = (await client.get("/metrics")).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def cluster(
    folder: Path,
    store_url: str,
    *,
    delay: float = 0.0,
    generation: dict[str, object] | None = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """A gateway with these options, connected; everything is stopped at the end."""
    name = f"test-{folder.name}"
    store = await Store.connect(store_url, name)
    emulated = Emulated(
        ServiceConfig(service_id="emulated", cluster=name, store=store_url), store, delay=delay
    )
    await emulated.start()
    if "models" not in options:
        options["model"] = str(write_model(folder / "tiny", generation=generation))
    config = GatewayConfig(
        service_id=GATEWAY_ID, cluster=name, store=store_url, http_port=0, **options
    )
    server = GrpcServer(config, for_clients=True)
    runtime = Runtime(config=config, clock=Clock(), store=store, server=server, log=get_logger())
    service = await build(runtime)
    runtime.address = await server.start()
    await service.start()
    await server.set_serving(True)
    found = Cluster(service, emulated, runtime.address, store)
    try:
        await until(lambda: GATEWAY_ID in emulated.gateways)
        yield found
    finally:
        await service.stop()
        await server.stop(0.1)
        await emulated.stop()
        await store.close()


async def until(holds: Callable[[], bool]) -> None:
    """Poll, with a deadline."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def write_keys(folder: Path) -> Path:
    """The keys ``hw-a`` and ``hw-b`` of the clients a and b."""
    folder.mkdir(exist_ok=True)
    file = folder / "keys"
    file.write_text("\n".join(key_line(name, f"hw-{name}") for name in "ab"))
    file.chmod(0o600)
    file.chmod(0o600)
    return file
