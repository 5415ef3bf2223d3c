"""STAR on live services: two workers with a real model, a scheduler and the wire between them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.request import Request, SamplingParams
from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime import wire
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Member, Store
from services.worker.config import WorkerConfig
from services.worker.main import build
from tests.services.scheduler.scheduler_rig import Rig, make_request, until

MODEL = Path(__file__).resolve().parents[3] / "models" / "headway-mini"
NUM_TOKENS = 600
EAGER = {"interval": 0.1, "rest": 60.0, "step_tokens": 64}


class Sink(gateway_pb2_grpc.TokenSinkServicer):
    """A gateway's token sink: who sent which token of which stream."""

    def __init__(self) -> None:
        self.indices: dict[int, list[int]] = defaultdict(list)
        self.senders: dict[int, dict[str, None]] = defaultdict(dict)

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        worker_id = ""
        async for packed in request_iterator:
            batch = wire.unpack_token_batch(packed)
            worker_id = batch.worker_id or worker_id
            for stream_id, index in zip(batch.stream_ids, batch.indices, strict=True):
                self.indices[stream_id].append(index)
                self.senders[stream_id][worker_id] = None
        return
        yield gateway_pb2.TokenControl()


@asynccontextmanager
async def live_worker(rig: Rig, worker_id: str) -> AsyncIterator[None]:
    config = WorkerConfig(
        **rig.config, service_id=worker_id, model=str(MODEL), num_threads=1, num_blocks=640
    )
    store = await Store.connect(config.store, config.cluster)
    runtime: Runtime[WorkerConfig] = Runtime(
        config, Clock(), store, GrpcServer(config), get_logger()
    )
    service = await build(runtime)
    runtime.address = await runtime.server.start()
    await service.start()
    await store.join(Member("worker", worker_id, runtime.address, "unified", MODEL.name), 60.0)
    try:
        yield
    finally:
        await service.stop()
        await runtime.server.stop(0.1)
        await store.close()


def long_request(stream_id: int, address: str) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return replace(
        make_request(stream_id, model=MODEL.name),
        gateway_address=address,
        sampling=sampling,
        predicted_output_tokens=float(NUM_TOKENS),
    )


@pytest.mark.timeout(120)
async def test_a_running_request_moves_to_a_worker_that_joins_later(rig: Rig) -> None:
    sink, server = Sink(), GrpcServer(ServiceConfig(**rig.config))
    server.add(
        lambda it: gateway_pb2_grpc.add_TokenSinkServicer_to_server(sink, it),
        "headway.v1.TokenSink",
    )
    address = await server.start()
    leader = await rig.leader(rescheduling="star", rescheduling_params=EAGER)
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0.1)
        await stack.enter_async_context(live_worker(rig, "a"))
        for stream_id in (1, 2, 3):
            await gateway.write(long_request(stream_id, address))
        await until(lambda: all(sink.indices[n] for n in (1, 2, 3)), "all three run")
        await stack.enter_async_context(live_worker(rig, "b"))
        await until(lambda: any(to == "b" for _, to in gateway.placed), "one is told to move")
        moved = next(stream_id for stream_id, to in gateway.placed if to == "b")
        async with asyncio.timeout(60):
            while len(sink.indices[moved]) < NUM_TOKENS:
                await asyncio.sleep(0.05)
    assert list(sink.senders[moved])[:2] == ["a", "b"]
    assert sorted(sink.indices[moved]) == list(range(NUM_TOKENS))  # each once, none missing
