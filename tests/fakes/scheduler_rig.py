"""Real schedulers on real gRPC and a real store, with emulated workers and a plain gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import grpc
from prometheus_client import CollectorRegistry, generate_latest

from headway.cluster import Role, UnitLoad, WorkerInfo
from headway.messages import (
    Accepted,
    CancelStream,
    ControlHello,
    Dispatch,
    EndForward,
    FinishedRequest,
    FromWorker,
    GatewayHello,
    HeldRequest,
    Placed,
    Snapshot,
    ToGateway,
    Tuned,
)
from headway.picture import ClusterPicture
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from protos import scheduler_pb2, scheduler_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.server import GrpcServer
from services.runtime.service import Runtime
from services.runtime.store import Member, Store
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import SchedulerService
from tests.fakes.requests import a_request

M = TypeVar("M")
PATIENCE = 180.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll, with a deadline."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


CHUNK = 256
"""Prompt tokens of a pass; a prompt that fills it lets the next one wait."""


class EmulatedWorker(worker_pb2_grpc.WorkerServicer):
    """Says what the test tells it to; by itself it sends a snapshot and acknowledges."""

    def __init__(self, worker_id: str, role: Role) -> None:
        self.worker_id = worker_id
        self.role = role
        self.address = ""
        self.held: tuple[HeldRequest, ...] = ()
        self.silent, self.accepts = False, True
        self.hellos: list[ControlHello] = []
        self.orders: list[Dispatch | CancelStream | Tuned] = []
        self.server: GrpcServer | None = None
        self._reports: asyncio.Queue[FromWorker | None] = asyncio.Queue()

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(self.worker_id, self.address, self.role, "m", 1, CHUNK, 16, 100, 1000, 64)

    async def Control(
        self,
        request_iterator: AsyncIterator[worker_pb2.SchedulerToWorker],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        reports = self._reports = asyncio.Queue()
        reader = asyncio.create_task(self._read(aiter(request_iterator)))
        try:
            while (report := await reports.get()) is not None:
                yield wire.FROM_WORKER.pack(report)
        finally:
            reader.cancel()

    async def TransferKv(
        self,
        request_iterator: AsyncIterator[worker_pb2.KvChunk],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> worker_pb2.KvReceipt:
        raise AssertionError("no scheduler moves KV")

    async def SetRole(
        self, request: worker_pb2.SetRoleRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_pb2.SetRoleReply:
        raise AssertionError("no scheduler changes a role")

    async def _read(self, orders: AsyncIterator[worker_pb2.SchedulerToWorker]) -> None:
        async for packed in orders:
            order = wire.TO_WORKER.unpack(packed, now=time.time())
            if isinstance(order, ControlHello):
                self.hellos.append(order)
                if self.silent:
                    continue
                loads = (UnitLoad(0, 0, len(self.held), len(self.held), 90),)
                self.report(Snapshot(self.info, loads, self.held))
            else:
                assert isinstance(order, Dispatch | CancelStream | Tuned)
                self.orders.append(order)
                if isinstance(order, Dispatch) and self.accepts:
                    self.report(Accepted(order.dispatch_id))

    def report(self, report: FromWorker) -> None:
        self._reports.put_nowait(report)

    def end_pass(self, *, finished: int = 0) -> None:
        """The last dispatch's pass ends; one request is finished by it."""
        dispatches = [order for order in self.orders if isinstance(order, Dispatch)]
        ids = (dispatches[-1].dispatch_id,) if dispatches else ()
        end = FinishedRequest(key(finished), 0, 4, 2, FinishReason.STOP)
        ends = (end,) if finished else ()
        loads = (UnitLoad(0, 0, 0, 0 if finished else 5, 90),)
        self.report(EndForward(1, 0.01, ids, loads, finished=ends))

    def hang_up(self) -> None:
        self._reports.put_nowait(None)

    def of(self, kind: type[M]) -> list[M]:
        return [order for order in self.orders if isinstance(order, kind)]

    @property
    def dispatched(self) -> list[int]:
        return [
            request.stream_id
            for dispatch in self.of(Dispatch)
            for batch in dispatch.batches
            for request in batch.requests
        ]


class PlainGateway:
    """One stream to one scheduler."""

    def __init__(self, gateway_id: str = "g") -> None:
        self.gateway_id = gateway_id
        self.answers: list[ToGateway] = []
        self.error: grpc.aio.AioRpcError | None = None

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[PlainGateway]:
        async with open_channel(address, ServiceConfig(), ServiceRole.SCHEDULER) as channel:
            self._channel = channel
            self._call = scheduler_pb2_grpc.SchedulerStub(channel).Connect(wait_for_ready=True)
            await self.write(GatewayHello(self.gateway_id, "127.0.0.1:1"))
            reader = asyncio.create_task(self._read())
            try:
                yield self
            finally:
                reader.cancel()
                self._call.cancel()

    async def write(self, message: GatewayHello | Request | CancelStream) -> None:
        await self.write_raw(wire.FROM_GATEWAY.pack(message, now=time.time()))

    async def write_raw(self, packed: scheduler_pb2.GatewayMessage) -> None:
        try:
            await self._call.write(packed)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader knows why

    async def explain(self, request_id: str) -> list[str]:
        return await wire.explain(self._channel, request_id, within=PATIENCE)

    async def picture(self) -> ClusterPicture:
        return await wire.picture(self._channel, within=PATIENCE)

    async def submit(self, stream_id: int, *, model: str = "m", num_tokens: int = 4) -> None:
        request = make_request(stream_id, self.gateway_id, model)
        await self.write(replace(request, prompt_token_ids=(*range(1, num_tokens + 1),)))

    async def _read(self) -> None:
        try:
            async for packed in self._call:
                self.answers += wire.TO_GATEWAY.unpack_all(packed)
        except grpc.aio.AioRpcError as error:
            self.error = error

    def of(self, kind: type[M]) -> list[M]:
        return [answer for answer in self.answers if isinstance(answer, kind)]

    @property
    def placed(self) -> list[tuple[int, str]]:
        return [(p.key.stream_id, p.worker_id) for p in self.of(Placed)]


def key(stream_id: int, gateway_id: str = "g") -> StreamKey:
    return StreamKey(gateway_id, stream_id)


def make_request(stream_id: int, gateway_id: str = "g", model: str = "m") -> Request:
    fields = {"gateway_id": gateway_id, "gateway_address": "127.0.0.1:1", "model": model}
    sampling = SamplingParams(temperature=0.0, max_tokens=2)
    return a_request(stream_id, (1, 2, 3, 4), sampling, arrival_at=1.0, **fields)


class Scheduler:
    """One scheduler process' worth of objects."""

    def __init__(self, runtime: Runtime[SchedulerConfig]) -> None:
        self.registry = CollectorRegistry()
        self.runtime = runtime
        self.service = SchedulerService(runtime, self.registry)
        runtime.server.add(self.service.links)

    @property
    def address(self) -> str:
        return self.runtime.address

    def metrics(self) -> dict[str, float]:
        lines = generate_latest(self.registry).decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


class Rig:
    """Starts what a test asks for, and stops it all."""

    def __init__(self, store_url: str, cluster: str) -> None:
        self._stack = AsyncExitStack()
        self.config: dict[str, Any] = {"store": store_url, "cluster": cluster}

    async def __aenter__(self) -> Rig:
        self.store = await Store.connect(self.config["store"], self.config["cluster"])
        self._stack.push_async_callback(self.store.close)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def scheduler(self, **options: Any) -> Scheduler:
        config = SchedulerConfig(**{**self.config, **options})
        store = await Store.connect(config.store, config.cluster)
        self._stack.push_async_callback(store.close)
        runtime = Runtime(
            config, Clock(config.clock_error), store, GrpcServer(config), get_logger()
        )
        scheduler = Scheduler(runtime)
        runtime.address = await runtime.server.start()
        self._stack.push_async_callback(runtime.server.stop, 0.1)
        await scheduler.service.start()
        self._stack.push_async_callback(scheduler.service.stop)
        return scheduler

    async def leader(self, **options: Any) -> Scheduler:
        scheduler = await self.scheduler(**options)
        await until(lambda: scheduler.service.leads, "it leads")
        return scheduler

    async def trio(self, **options: Any) -> tuple[Scheduler, EmulatedWorker, PlainGateway]:
        """Start a leader, the worker ``w`` and the gateway ``g``."""
        leader, worker = await self.leader(**options), await self.worker("w")
        return leader, worker, await self.gateway(leader.address)

    async def busy(self, **options: Any) -> tuple[Scheduler, EmulatedWorker, PlainGateway]:
        """Start them, and let the worker have request 1."""
        leader, worker, gateway = await self.trio(**options)
        await gateway.submit(1)
        await until(lambda: worker.dispatched == [1], "the worker has it")
        return leader, worker, gateway

    async def worker(self, worker_id: str, role: Role = Role.UNIFIED) -> EmulatedWorker:
        worker = EmulatedWorker(worker_id, role)
        worker.server = GrpcServer(ServiceConfig(**self.config))
        worker.server.add(worker)
        worker.address = await worker.server.start()
        self._stack.push_async_callback(worker.server.stop, 0.1)
        await self.join(worker)
        return worker

    async def join(self, worker: EmulatedWorker, ttl: float = 60.0) -> None:
        await self.store.join(_member(worker), ttl)

    async def leave(self, worker: EmulatedWorker) -> None:
        await self.store.leave(_member(worker))

    async def gateway(self, address: str, gateway_id: str = "g") -> PlainGateway:
        return await self._stack.enter_async_context(PlainGateway(gateway_id).connect(address))


def _member(worker: EmulatedWorker) -> Member:
    return Member("worker", worker.worker_id, worker.address, worker.role.value, "m")
