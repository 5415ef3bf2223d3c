"""The scheduler leader's control stream: orders in, reports out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headway.core.worker.events import SchedulerConnected
from headway.errors import Code, HeadwayError, invalid
from headway.messages import (
    ControlHello,
    FromWorker,
    Order,
)
from protos import worker_pb2
from services.runtime import wire
from services.runtime.logs import get_logger


class ControlSession:
    """At most one leader speaks to the worker; a newer fencing token replaces an older one."""

    def __init__(
        self, post: Callable[[SchedulerConnected | Order], None], num_reports_queued: int = 65_536
    ) -> None:
        self._post = post
        self._fencing_token = 0
        self._num_reports_queued = num_reports_queued
        self._reports: asyncio.Queue[FromWorker | HeadwayError | None] | None = None
        self._log = get_logger()

    def report(self, report: FromWorker) -> None:
        """Queue a report; without a leader it is dropped (the next one gets a snapshot)."""
        if self._reports is None:
            return
        try:
            self._reports.put_nowait(report)
        except asyncio.QueueFull:
            self._end(HeadwayError(Code.RESOURCE_EXHAUSTED, "the scheduler does not read"))

    def _end(self, error: HeadwayError | None) -> None:
        reports, self._reports = self._reports, None
        if reports is None:
            return
        while reports.full():
            reports.get_nowait()
        reports.put_nowait(error)

    async def serve(
        self, orders: AsyncIterator[worker_pb2.SchedulerToWorker]
    ) -> AsyncIterator[worker_pb2.WorkerToScheduler]:
        """One leader's stream, until it hangs up or a newer leader comes."""
        hello = self._greet(await anext(orders, None))
        reports: asyncio.Queue[FromWorker | HeadwayError | None]
        reports = asyncio.Queue(self._num_reports_queued)
        self._reports = reports
        reader = asyncio.create_task(self._read(orders, reports))
        try:
            self._post(SchedulerConnected(hello.wants, hello.fencing_token))
            while (report := await reports.get()) is not None:
                if isinstance(report, HeadwayError):
                    raise report
                yield wire.FROM_WORKER.pack(report)
        finally:
            reader.cancel()
            if self._reports is reports:
                self._reports = None

    def _greet(self, first: worker_pb2.SchedulerToWorker | None) -> ControlHello:
        hello = wire.TO_WORKER.unpack(first) if first is not None else None
        if not isinstance(hello, ControlHello):
            raise invalid("the first message", type(hello).__name__, "a ControlHello")
        if hello.fencing_token < self._fencing_token:
            raise HeadwayError(
                Code.FAILED_PRECONDITION,
                f"fencing token is {hello.fencing_token}; a leader with {self._fencing_token} "
                "has come since: this scheduler leads no more",
            )
        self._log.info("scheduler_connected", scheduler_id=hello.scheduler_id)
        self._fencing_token = hello.fencing_token
        self._end(HeadwayError(Code.FAILED_PRECONDITION, "a newer leader has come"))
        return hello

    async def _read(
        self,
        orders: AsyncIterator[worker_pb2.SchedulerToWorker],
        reports: asyncio.Queue[FromWorker | HeadwayError | None],
    ) -> None:
        end: HeadwayError | None = None
        try:
            async for message in orders:
                order = wire.TO_WORKER.unpack(message)
                if isinstance(order, ControlHello):
                    raise invalid("a later message", "ControlHello", "an order")
                if self._reports is not reports:
                    return  # a newer leader has been told what is here: this order comes too late
                self._post(order)
        except HeadwayError as error:
            end = error
        finally:
            if self._reports is reports:
                self._end(end)
