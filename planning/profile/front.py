"""The peers of workers under measurement: a gateway that counts tokens and a place for KV."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from headway.errors import Code, HeadwayError
from headway.messages import KvHeader
from planning.profile.link import Awaited
from protos import gateway_pb2, gateway_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.server import GrpcServer

GATEWAY_ID = "profile"

_TAKES_KV_ALONE = HeadwayError(Code.FAILED_PRECONDITION, "this worker takes KV and nothing else")
_Context = grpc.aio.ServicerContext[Any, Any]


class Front(gateway_pb2_grpc.TokenSinkServicer, worker_pb2_grpc.WorkerServicer):
    """A count of ``num_tokens`` and ``num_batches`` (one a pass) of all workers.

    It is also a decode worker that keeps nothing of a KV but its header.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_batches = 0
        self.address = ""
        self._gaps: Awaited[float] = Awaited()
        self._headers: Awaited[KvHeader] = Awaited()
        self._news = asyncio.Event()
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
        """Return a future: seconds from the worker's last tokens to the stream's first."""
        return self._gaps.expect(stream_id)

    def header(self, stream_id: int) -> asyncio.Future[KvHeader]:
        """Return a future: the KV header that comes for a stream."""
        return self._headers.expect(stream_id)

    async def next_batch(self) -> None:
        """Return when a pass's tokens come."""
        await self._news.wait()

    # --- RPCs -------------------------------------------------------------------------------

    async def Attach(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[gateway_pb2.TokenBatch], context: _Context
    ) -> AsyncIterator[gateway_pb2.TokenControl]:
        """Receive one worker's tokens."""
        before = now = asyncio.get_running_loop().time()
        try:
            async for packed in request_iterator:
                before, now = now, asyncio.get_running_loop().time()
                self._take(packed, now - before)
        finally:
            hung_up = "a worker has hung up: see its log"
            self._gaps.fail(HeadwayError(Code.UNAVAILABLE, hung_up))
        return
        yield gateway_pb2.TokenControl()

    def _take(self, packed: gateway_pb2.TokenBatch, gap: float) -> None:
        self.num_batches += 1
        self.num_tokens += len(packed.stream_ids)
        for stream_id in packed.stream_ids:
            self._gaps.settle(stream_id, gap)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def Control(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[worker_pb2.SchedulerToWorker], context: _Context
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        """Refuse: this place has no leader."""
        raise _TAKES_KV_ALONE
        yield worker_pb2.WorkerToScheduler()

    async def SetRole(  # noqa: N802 (the proto's name)
        self, request: worker_pb2.SetRoleRequest, context: _Context
    ) -> worker_pb2.SetRoleReply:
        """Refuse: this place has no role."""
        raise _TAKES_KV_ALONE

    async def TransferKv(  # noqa: N802 (the proto's name)
        self, request_iterator: AsyncIterator[worker_pb2.KvChunk], context: _Context
    ) -> worker_pb2.KvReceipt:
        """Read one request's KV and let it go."""
        async for chunk in request_iterator:
            header = wire.KV.unpack(chunk, now=time.time())
            if isinstance(header, KvHeader):
                self._headers.settle(header.request.stream_id, header)
        return worker_pb2.KvReceipt(worker_id=GATEWAY_ID)
