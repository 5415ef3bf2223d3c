"""What workers under measurement talk to: a gateway that counts tokens and a place for KV."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from headway.errors import Code, HeadwayError
from headway.messages import KvHeader
from protos import gateway_pb2, gateway_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.server import GrpcServer

GATEWAY_ID = "profile"

_Context = grpc.aio.ServicerContext[Any, Any]


class Front(gateway_pb2_grpc.TokenSinkServicer, worker_pb2_grpc.WorkerServicer):
    """Counts ``num_tokens`` and ``num_batches`` (one a pass) of all workers.

    It is also a decode worker that keeps nothing of a KV but its header.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_batches = 0
        self.address = ""
        self._gaps: dict[int, asyncio.Future[float]] = {}
        self._headers: dict[int, asyncio.Future[KvHeader]] = {}
        self._news = _future()
        self._server = GrpcServer(ServiceConfig(service_id=GATEWAY_ID))

    async def start(self) -> None:
        """Listen."""
        self._server.add(self)
        self.address = await self._server.start()

    async def stop(self) -> None:
        """Hang up."""
        await self._server.stop(0.0)

    # --- what is waited for ---------------------------------------------------------------

    def gap(self, stream_id: int) -> asyncio.Future[float]:
        """Seconds from its worker's tokens before to the pass that brings the stream's first."""
        return self._gaps.setdefault(stream_id, _future())

    def header(self, stream_id: int) -> asyncio.Future[KvHeader]:
        """What the stream's KV is, once it has been sent here."""
        return self._headers.setdefault(stream_id, _future())

    async def next_batch(self) -> None:
        """Return when a pass's tokens come."""
        await asyncio.shield(self._news)

    # --- RPCs -------------------------------------------------------------------------------

    async def Attach(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[gateway_pb2.TokenBatch], context: _Context
    ) -> AsyncIterator[gateway_pb2.TokenControl]:
        """One worker's tokens."""
        before = now = asyncio.get_running_loop().time()
        try:
            async for packed in request_iterator:
                before, now = now, asyncio.get_running_loop().time()
                self._take(packed, now - before)
        finally:
            self._fail()
        return
        yield gateway_pb2.TokenControl()

    def _take(self, packed: gateway_pb2.TokenBatch, gap: float) -> None:
        self.num_batches += 1
        self.num_tokens += len(packed.stream_ids)
        for stream_id in packed.stream_ids:
            _settle(self._gaps, stream_id, gap)
        news, self._news = self._news, _future()
        news.set_result(None)

    def _fail(self) -> None:
        """A worker has hung up: nobody waits for its tokens any more."""
        error = HeadwayError(Code.UNAVAILABLE, "a worker has hung up: see its log")
        for future in self._gaps.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting for it: that is no error

    async def Control(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[worker_pb2.SchedulerToWorker], context: _Context
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        """Nobody leads it."""
        error = HeadwayError(Code.FAILED_PRECONDITION, "this worker takes KV and nothing else")
        await wire.abort(context, error)
        yield worker_pb2.WorkerToScheduler()

    async def SetRole(  # noqa: N802 (the proto's name)
        self, request: worker_pb2.SetRoleRequest, context: _Context
    ) -> worker_pb2.SetRoleReply:
        """It has no role."""
        error = HeadwayError(Code.FAILED_PRECONDITION, "this worker takes KV and nothing else")
        await wire.abort(context, error)
        return worker_pb2.SetRoleReply()

    async def TransferKv(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[worker_pb2.KvChunk], context: _Context
    ) -> worker_pb2.KvReceipt:
        """One request's KV: read and let go."""
        async for chunk in request_iterator:
            header = wire.KV.unpack(chunk)
            if isinstance(header, KvHeader):
                _settle(self._headers, header.request.stream_id, header)
        return worker_pb2.KvReceipt(worker_id=GATEWAY_ID)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _settle(waited: dict[int, asyncio.Future[Any]], stream_id: int, value: object) -> None:
    future = waited.pop(stream_id, None)
    if future is not None and not future.done():
        future.set_result(value)
