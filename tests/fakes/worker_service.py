"""A worker over real gRPC, with a leader and a gateway's sink to talk to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from headway.errors import Code
from headway.messages import ControlHello, Snapshot
from headway.request import Request, SamplingParams
from protos import gateway_pb2, gateway_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.runtime.service import Runtime
from services.worker.config import WorkerConfig
from services.worker.engines import Load, load_engine
from services.worker.loading import load_backend
from services.worker.servicer import WorkerServicer, build
from tests.fakes.fake_engine import load_fake
from tests.fakes.requests import a_request
from tests.fakes.running import running

LOADERS: dict[str, Load] = {"torch": load_backend, "fake": load_fake, "openai": load_engine}
needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed")
MODEL = Path(__file__).resolve().parents[2] / "models" / "headway-mini"


class Sink(gateway_pb2_grpc.TokenSinkServicer):
    """A gateway's token sink that keeps what it gets."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()
        self.cached: dict[int, int] = {}
        self.failures: list[str] = []
        self.codes: list[Code] = []

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for packed in request_iterator:
            batch = wire.unpack_token_batch(packed)
            self.failures += [failure.message for failure in batch.failures]
            self.codes += [failure.code for failure in batch.failures]
            self.cached |= {batch.stream_ids[n]: count for n, count in batch.num_cached.items()}
            rows = zip(batch.stream_ids, batch.indices, batch.token_ids, strict=True)
            for row in rows:
                self.tokens.put_nowait(row)
        return
        yield gateway_pb2.TokenControl()


@asynccontextmanager
async def process(
    store_url: str,
    cluster: str,
    service_id: str = "w",
    *,
    engine: str = "torch",
    load: Load | None = None,
    **options: Any,
) -> AsyncIterator[tuple[WorkerServicer, Runtime[WorkerConfig]]]:
    """A worker that has started; it is stopped at the end."""
    config = WorkerConfig(
        service_id=service_id,
        store=store_url,
        cluster=cluster,
        model=str(MODEL),
        num_threads=1,
        gateway_patience=2.0,
        engine="torch" if engine == "fake" else engine,
        **(
            {}
            if engine == "openai" and load is None
            else {"num_blocks": 160, "max_model_len": 2048}
        )
        | options,
    )
    async with running(config, partial(build, load=load or LOADERS[engine])) as found:
        yield found


@asynccontextmanager
async def served(
    store_url: str, cluster: str, service_id: str = "w", **options: Any
) -> AsyncIterator[tuple[worker_pb2_grpc.WorkerStub, Runtime[WorkerConfig]]]:
    """A worker, and a stub to talk to it."""
    async with (
        process(store_url, cluster, service_id, **options) as (_, runtime),
        open_channel(runtime.address, runtime.config, ServiceRole.WORKER) as channel,
    ):
        yield worker_pb2_grpc.WorkerStub(channel), runtime


class Leader:
    """One scheduler's control stream."""

    def __init__(self, stub: Any, token: int) -> None:
        self._call: Any = stub.Control(wait_for_ready=True)  # a slow machine connects late
        self._token = token

    async def greet(self) -> Snapshot:
        await self.send(ControlHello(f"scheduler-{self._token}", self._token))
        snapshot = await self.hear()
        assert isinstance(snapshot, Snapshot)
        return snapshot

    async def send(self, message: Any) -> None:
        await self._call.write(wire.TO_WORKER.pack(message, now=time.time()))

    async def hear(self) -> Any:
        async with asyncio.timeout(60):
            packed = await self._call.read()
            if packed is grpc.aio.EOF:
                raise await self.ended()
            return wire.FROM_WORKER.unpack(packed)

    async def ended(self) -> grpc.aio.AioRpcError:
        code, details = await self._call.code(), await self._call.details()
        metadata = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(code, metadata, metadata, details)


async def hear(leader: Leader, kind: type[Any]) -> Any:
    """The next message of this kind."""
    while not isinstance(said := await leader.hear(), kind):
        pass
    return said


async def tokens_of(found: Sink, count: int) -> list[tuple[int, int, int]]:
    """So many tokens: stream, index and id."""
    async with asyncio.timeout(60):
        return [await found.tokens.get() for _ in range(count)]


async def send_kv(stub: Any, *chunks: worker_pb2.KvChunk) -> Any:
    async def stream() -> AsyncIterator[worker_pb2.KvChunk]:
        for chunk in chunks:
            yield chunk

    return await stub.TransferKv(stream(), timeout=20)


def make_request(address: str, stream_id: int = 1, *, max_tokens: int = 4) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    fields = {"gateway_address": address, "model": MODEL.name, "arrival_at": 1.0}
    return a_request(stream_id, (65, 100, 100, 32, 49), sampling, **fields)
