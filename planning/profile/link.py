"""A worker under measurement, led as its scheduler would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import grpc

from headway.cluster import WorkerInfo
from headway.errors import Code, HeadwayError
from headway.messages import (
    CancelStream,
    ControlHello,
    Dispatch,
    EndForward,
    FinishedRequest,
    Handoff,
    HandoffResult,
    HeldRequest,
    KvHeader,
    Order,
    Snapshot,
    UnitBatch,
)
from headway.request import Request, StreamKey
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole

_PIECE = bytes(1 << 20)
_FENCING_TOKEN = 1
TIMEOUT = 120.0

T = TypeVar("T")


class Awaited(Generic[T]):
    """Futures by stream id."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[T]] = {}

    def expect(self, stream_id: int) -> asyncio.Future[T]:
        """Return the future of a stream's value."""
        future = asyncio.get_running_loop().create_future()
        return self._futures.setdefault(stream_id, future)

    def settle(self, stream_id: int, value: T) -> None:
        """Hand a value to the one that waits for it, if any."""
        future = self._futures.pop(stream_id, None)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, error: HeadwayError) -> None:
        """Raise the error wherever a value is awaited."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # that no task awaits it is no error


class LedWorker:
    """A worker's stream; ``info`` is its own description, its reports end what is awaited."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self._channel = channel
        self._call: Any = wire.dial_control(channel)
        self._writing = asyncio.Lock()
        self._num_dispatches = 0
        self._finished: Awaited[FinishedRequest] = Awaited()
        self._prefilled: Awaited[HeldRequest] = Awaited()
        self._handed: Awaited[HandoffResult] = Awaited()
        self._lost: HeadwayError | None = None

    async def greet(self) -> None:
        """Lead it; HeadwayError where it does not answer."""
        await self._call.write(
            wire.TO_WORKER.pack(ControlHello("profile", _FENCING_TOKEN), now=time.time())
        )
        snapshot = wire.FROM_WORKER.unpack(await self._call.read())
        assert isinstance(snapshot, Snapshot), "a worker answers a hello with a snapshot"
        self.info: WorkerInfo = snapshot.info

    async def listen(self) -> None:
        """Take its reports until it hangs up: who waits for one then gets a HeadwayError."""
        try:
            while (packed := await self._call.read()) is not grpc.aio.EOF:
                self._take(wire.FROM_WORKER.unpack(packed))
            detail = "it hung up"
        except grpc.aio.AioRpcError as error:
            detail = f"{error.code().name}: {error.details()}"
        self._lost = HeadwayError(Code.UNAVAILABLE, f"the worker is gone ({detail}): see its log")
        for awaited in (self._finished, self._prefilled, self._handed):
            awaited.fail(self._lost)

    def _take(self, report: object) -> None:
        if isinstance(report, EndForward):
            for finished in report.finished:
                self._finished.settle(finished.key.stream_id, finished)
            for held in report.prefilled:
                self._prefilled.settle(held.key.stream_id, held)
        elif isinstance(report, HandoffResult):
            self._handed.settle(report.key.stream_id, report)

    async def _send(self, order: Order) -> None:
        if self._lost is not None:
            raise self._lost
        async with self._writing:  # one write at a time
            await self._call.write(wire.TO_WORKER.pack(order, now=time.time()))

    # --- orders ---------------------------------------------------------------------------

    async def dispatch(self, requests: Iterable[Request]) -> list[asyncio.Future[FinishedRequest]]:
        """Prefill them; return a future of each one's end."""
        asked = tuple(requests)
        futures = [self._finished.expect(request.key.stream_id) for request in asked]
        self._num_dispatches += 1
        await self._send(Dispatch(self._num_dispatches, (UnitBatch(0, asked),)))
        return futures

    async def prefill(self, request: Request) -> asyncio.Future[HeldRequest]:
        """Prefill it and hold it for a handoff; return a future of that."""
        future = self._prefilled.expect(request.key.stream_id)
        self._num_dispatches += 1
        await self._send(Dispatch(self._num_dispatches, (UnitBatch(0, (request,)),)))
        return future

    async def hand_off(self, key: StreamKey, worker_id: str, address: str) -> HandoffResult:
        """Send a held request's KV there."""
        future = self._handed.expect(key.stream_id)
        await self._send(Handoff(key, worker_id, address, 0, _FENCING_TOKEN))
        return await future

    async def cancel(self, keys: Iterable[StreamKey]) -> None:
        """Cancel them; their futures end."""
        for key in keys:
            await self._send(CancelStream(key))

    def ended(self, key: StreamKey) -> asyncio.Future[FinishedRequest]:
        """Return a future: the end of a request that comes from elsewhere."""
        return self._finished.expect(key.stream_id)

    async def give_kv(self, request: Request, like: KvHeader) -> None:
        """Hand it a request whose prompt is computed: its KV is of ``like``'s kind, and zero.

        HeadwayError: RESOURCE_EXHAUSTED where it has no room.
        """
        chunks = _kv(request, like, self.info)
        await wire.transfer_kv(self._channel, chunks, within=TIMEOUT)


@asynccontextmanager
async def leading(address: str, config: ServiceConfig) -> AsyncIterator[LedWorker]:
    """Lead the worker that serves there."""
    async with open_channel(address, config, ServiceRole.WORKER) as channel:
        link = LedWorker(address, channel)
        await link.greet()
        listening = asyncio.create_task(link.listen())
        try:
            yield link
        finally:
            listening.cancel()


def _kv(request: Request, like: KvHeader, info: WorkerInfo) -> Iterator[Any]:
    num_computed = len(request.prompt_token_ids)
    num_padded = -(-num_computed // info.block_size) * info.block_size
    num_bytes = num_padded * info.kv_bytes_per_token
    header = KvHeader(
        request=request,
        unit=0,
        num_computed_tokens=num_computed,
        num_bytes=num_bytes,
        block_size=info.block_size,
        dtype=like.dtype,
        shape=(*like.shape[:2], num_padded, *like.shape[3:]),
        fencing_token=_FENCING_TOKEN,
        layout=like.layout,
    )
    yield wire.KV.pack(header, now=time.time())
    for start in range(0, num_bytes, len(_PIECE)):
        yield wire.KV.pack(_PIECE[: num_bytes - start], now=time.time())
