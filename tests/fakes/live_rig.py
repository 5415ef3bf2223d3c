"""Real workers with the small model, and a gateway's token sink, for a scheduler's live tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.request import Request, SamplingParams
from protos import gateway_pb2, gateway_pb2_grpc
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.server import GrpcServer
from services.runtime.store import Member
from services.worker.config import WorkerConfig
from services.worker.servicer import WorkerServicer, build
from tests.fakes.running import running
from tests.fakes.scheduler_rig import Rig, make_request

MODEL = Path(__file__).resolve().parents[2] / "models" / "headway-mini"

LEASE = 60.0
"""Seconds: a worker that loads its model may hold the leader's loop for longer than the default."""


class Sink(gateway_pb2_grpc.TokenSinkServicer):
    """A gateway's token sink: who sent which token of which stream."""

    def __init__(self) -> None:
        self.indices: dict[int, list[int]] = defaultdict(list)
        self.tokens: dict[int, dict[int, int]] = defaultdict(dict)
        self.senders: dict[int, dict[str, None]] = defaultdict(dict)

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        worker_id = ""
        async for packed in request_iterator:
            batch = wire.unpack_token_batch(packed)
            worker_id = batch.worker_id or worker_id
            columns = (batch.stream_ids, batch.indices, batch.token_ids)
            for stream_id, index, token_id in zip(*columns, strict=True):
                self.indices[stream_id].append(index)
                self.tokens[stream_id][index] = token_id
                self.senders[stream_id][worker_id] = None
        return
        yield gateway_pb2.TokenControl()

    def text(self, stream_id: int) -> list[int]:
        """Its tokens by index."""
        return [token for _, token in sorted(self.tokens[stream_id].items())]


@asynccontextmanager
async def token_sink(rig: Rig) -> AsyncIterator[tuple[Sink, str]]:
    """A sink and its address."""
    sink, server = Sink(), GrpcServer(ServiceConfig(**rig.config))
    server.add(sink)
    address = await server.start()
    try:
        yield sink, address
    finally:
        await server.stop(0.1)


@asynccontextmanager
async def live_worker(
    rig: Rig, worker_id: str, role: str = "unified", *, joins: bool = True, **more: float
) -> AsyncIterator[WorkerServicer]:
    """One that loads the model and joins, at once or when ``join`` says so."""
    options = {"model": str(MODEL), "num_threads": 1, "num_blocks": 640, "role": role, **more}
    config = WorkerConfig(**rig.config, service_id=worker_id, **options)  # type: ignore[arg-type]  # options by name
    async with running(config, build) as (service, _):
        if joins:
            await join(rig, service)
        yield service


async def join(rig: Rig, service: WorkerServicer) -> None:
    """Let a loaded worker join, for longer than any test takes."""
    said = service.member()
    config, address = service._runtime.config, service._runtime.address
    member = Member("worker", config.service_id, address, said["role"], MODEL.name)
    await rig.store.join(member, 3600.0)


def long_request(stream_id: int, address: str, num_tokens: int) -> Request:
    """So many tokens, whatever they are; greedy."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return replace(
        make_request(stream_id, model=MODEL.name),
        gateway_address=address,
        prompt_token_ids=(60 + stream_id, 2, 3, 4),
        sampling=sampling,
        predicted_output_tokens=float(num_tokens),
    )
