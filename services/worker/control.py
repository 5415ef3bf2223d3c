"""The scheduler leader's control stream: orders in, reports out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from headway.core.worker.events import LeaderConnected
from headway.core.worker.leaders import farewell, require_meant, require_newest
from headway.errors import invalid
from headway.messages import ControlHello, FromWorker, Order
from services.runtime import wire
from services.runtime.failpoints import failpoint
from services.runtime.logs import get_logger
from services.runtime.stream import Served


class ControlSession:
    """The stream of at most one leader; a newer fencing token replaces an older one."""

    def __init__(
        self,
        post: Callable[[LeaderConnected | Order], None],
        now: Callable[[], float],
        num_reports_queued: int = 65_536,
        *,
        worker_id: str = "",
    ) -> None:
        self._post = post
        self._now = now
        self._worker_id = worker_id
        self._fencing_token = 0
        self._num_reports_queued = num_reports_queued
        self._stream: Served[FromWorker] | None = None
        self._log = get_logger()

    def report(self, report: FromWorker) -> None:
        """Queue a report; drop it without a leader (the next one gets a snapshot)."""
        if self._stream is not None and not self._stream.send(report):
            self._log.warning("scheduler_does_not_read")

    async def serve(self, orders: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Serve one leader's stream until it closes or a newer leader comes."""
        hello = self._greet(await anext(orders, None))
        stream = self._stream = Served[FromWorker](self._num_reports_queued)
        self._post(LeaderConnected(hello.wants, hello.fencing_token))
        async for reports in stream.serve(orders, self._obey):
            for report in reports:
                yield wire.FROM_WORKER.pack(report)

    def _greet(self, first: Any) -> ControlHello:
        hello = wire.TO_WORKER.unpack(first, now=self._now()) if first is not None else None
        if not isinstance(hello, ControlHello):
            raise invalid("the first message", type(hello).__name__, "a ControlHello")
        require_meant(hello, self._worker_id)
        require_newest(hello.fencing_token, self._fencing_token, now=self._now())
        self._log.info("scheduler_connected", scheduler_id=hello.scheduler_id)
        if self._stream is not None:
            self._stream.end(farewell(hello.fencing_token, self._fencing_token))
        self._fencing_token = hello.fencing_token
        return hello

    def _obey(self, packed: Any) -> None:
        order = wire.TO_WORKER.unpack(packed, now=self._now())
        if isinstance(order, ControlHello):
            raise invalid("a later message", "ControlHello", "an order")
        failpoint("worker.dispatch.taken")
        self._post(order)
