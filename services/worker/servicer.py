"""A worker's process: its RPCs, and the service behind them once the model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from headway.errors import Code, HeadwayError
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.membership import NONCE_DIGEST, digest_of
from services.runtime.reasoning import find_markers
from services.runtime.service import Runtime
from services.worker.config import WorkerConfig
from services.worker.engines import Load, load_engine
from services.worker.service import WorkerService, name_of_model
from services.worker.standby import Standby


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """One process from its start to its stop; it refuses RPCs until its model is loaded."""

    def __init__(self, runtime: Runtime[WorkerConfig], load: Load) -> None:
        self._runtime = runtime
        self._load = load
        self._service: WorkerService | None = None
        self._nonce = runtime.machine.draw(16).hex()
        """Tells this process from others that claim its name; the membership has its digest."""
        self._standby = Standby(runtime) if runtime.config.standby else None

    def register(self) -> None:
        """Add the RPCs to the server, which has not started yet."""
        self._runtime.server.add(self)
        standby = self._standby
        if standby is not None:
            self._runtime.server.add(standby)

    def member(self) -> Mapping[str, Any]:
        """Return what the membership publishes: role, model, and the digest of the nonce."""
        config = self._runtime.config
        role = config.role if self._service is None else self._service.role.value
        proof = {NONCE_DIGEST: digest_of(self._nonce)}
        return {"role": role, "model": name_of_model(config), "detail": proof}

    async def start(self) -> None:
        """Load the model, wait for a role if this worker stands by, then take work."""
        config = self._runtime.config
        engine = await asyncio.to_thread(self._load, config)
        reasoning = await asyncio.to_thread(
            find_markers, config.model, config.end_of_reasoning, config.start_of_reasoning
        )
        if self._standby is not None:
            config = await self._standby.role()
        self._service = WorkerService(self._runtime, config, engine, reasoning, self._nonce)

    async def drain(self) -> None:
        """Give up every request; return when none is held."""
        if self._service is not None:
            await self._service.drain()

    async def stop(self) -> None:
        """End streams, transfers and the engine's thread."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop()

    @property
    def _loaded(self) -> WorkerService:
        if self._service is None:
            message = "the worker is starting or stopping: try again"
            raise HeadwayError(Code.UNAVAILABLE, message)
        return self._service

    # --- RPCs -------------------------------------------------------------------------

    async def Control(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[worker_pb2.SchedulerToWorker],
        context: grpc.aio.ServicerContext[
            worker_pb2.SchedulerToWorker, worker_pb2.WorkerToScheduler
        ],
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        """See ``protos/worker.proto``."""
        async for report in self._loaded.control.serve(aiter(request_iterator)):
            yield report

    async def TransferKv(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[worker_pb2.KvChunk],
        context: grpc.aio.ServicerContext[worker_pb2.KvChunk, worker_pb2.KvReceipt],
    ) -> worker_pb2.KvReceipt:
        """See ``protos/worker.proto``."""
        await self._loaded.receiver.receive(aiter(request_iterator))
        return worker_pb2.KvReceipt(worker_id=self._runtime.config.service_id)

    async def SetRole(  # noqa: N802 (the proto's name)
        self,
        request: worker_pb2.SetRoleRequest,
        context: grpc.aio.ServicerContext[worker_pb2.SetRoleRequest, worker_pb2.SetRoleReply],
    ) -> worker_pb2.SetRoleReply:
        """See ``protos/worker.proto``."""
        await self._loaded.set_role(wire.SET_ROLE.unpack(request).role)
        return worker_pb2.SetRoleReply()


async def build(runtime: Runtime[WorkerConfig], load: Load = load_engine) -> WorkerServicer:
    """Return a process whose RPCs are registered; ``load`` makes its engine."""
    servicer = WorkerServicer(runtime, load)
    servicer.register()
    return servicer
