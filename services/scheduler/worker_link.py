"""The leader's control stream to one worker, opened again while the worker is a member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from headway.core.scheduler.events import WorkerGone, WorkerReported
from headway.errors import Code, HeadwayError
from headway.messages import (
    ControlHello,
    Order,
    Snapshot,
)
from protos import worker_pb2, worker_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.logs import get_logger

_ControlCall = grpc.aio.StreamStreamCall[worker_pb2.SchedulerToWorker, worker_pb2.WorkerToScheduler]

_CONNECT_TIMEOUT = 2.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class WorkerLink:
    """One worker. While no stream stands, orders are dropped: the core hears that it is gone."""

    def __init__(
        self,
        config: ServiceConfig,
        worker_id: str,
        address: str,
        hello: ControlHello,
        post: Callable[[WorkerReported | WorkerGone], None],
        *,
        max_queued: int,
    ) -> None:
        self._config = config
        self._worker_id = worker_id
        self._address = address
        self._hello = hello
        self._post = post
        self._max_queued = max_queued
        self._queue: asyncio.Queue[Order] | None = None
        self._call: _ControlCall | None = None
        self._log = get_logger().bind(worker_id=worker_id)
        self._task = asyncio.create_task(self._run())

    def send(self, order: Order) -> None:
        """Queue one order; a worker that does not read is cut off."""
        if self._queue is None:
            return
        try:
            self._queue.put_nowait(order)
        except asyncio.QueueFull:
            self._log.warning("worker_does_not_read", num_orders=self._max_queued)
            self._queue = None
            if self._call is not None:
                self._call.cancel()

    async def close(self) -> None:
        """Hang up for good."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        while True:
            stood = await self._serve()
            pause = _SHORTEST_PAUSE if stood else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _serve(self) -> bool:
        """One stream, until it breaks; whether the worker ever spoke on it."""
        stood, reason = False, "it closed its stream"
        try:
            async with open_channel(self._address, self._config) as channel:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await channel.channel_ready()
                call = worker_pb2_grpc.WorkerStub(channel).Control()
                await call.write(wire.TO_WORKER.pack(self._hello))
                stood = await self._converse(call)
        except TimeoutError:
            reason = "it cannot be reached"
        except asyncio.InvalidStateError as error:
            reason = f"its stream broke: {error}"
        except grpc.aio.AioRpcError as error:
            stood, reason = self._queue is not None, f"its stream broke: {error.details()}"
        except HeadwayError as error:
            reason = f"it talks nonsense: {error.message}"
        finally:
            self._call = self._queue = None
            self._post(WorkerGone(self._worker_id, f"worker {self._worker_id}: {reason}"))
        self._log.info("worker_stream_ended", address=self._address, reason=reason)
        return stood

    async def _converse(self, call: _ControlCall) -> bool:
        self._call = call
        queue: asyncio.Queue[Order] = asyncio.Queue(self._max_queued)
        writer: asyncio.Task[None] | None = None
        try:
            async for packed in call:
                message = wire.FROM_WORKER.unpack(packed)
                if isinstance(message, Snapshot):
                    self._check(message)
                    if writer is None:
                        self._queue = queue  # from now on it is known: orders may come
                        writer = asyncio.create_task(self._write(call, queue))
                        self._log.info("worker_connected", role=message.info.role.value)
                self._post(WorkerReported(self._worker_id, message))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            call.cancel()
        return writer is not None

    async def _write(self, call: _ControlCall, queue: asyncio.Queue[Order]) -> None:
        while True:
            await call.write(wire.TO_WORKER.pack(await queue.get()))

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.info.worker_id != self._worker_id:
            raise HeadwayError(
                Code.INVALID_ARGUMENT,
                f"worker_id is {snapshot.info.worker_id!r}; the member at {self._address} is "
                f"{self._worker_id!r}",
            )
