"""The leader's control stream to one worker, reopened while the worker is a member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headway.core.scheduler.events import WorkerGone, WorkerReported
from headway.core.scheduler.order_turns import OrderTurns
from headway.core.worker.leaders import is_superseded
from headway.errors import invalid
from headway.messages import Accepted, ControlHello, EndForward, FromWorker, Order, Snapshot
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.stream import Dialled, Outbox, redial

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class WorkerLink:
    """The link to one worker. Orders are dropped while it is closed: the core knows it is gone."""

    def __init__(
        self,
        config: ServiceConfig,
        worker_id: str,
        address: str,
        hello: ControlHello,
        post: Callable[[WorkerReported | WorkerGone], None],
        now: Callable[[], float],
        *,
        max_queued: int,
        refused: Callable[[str, bool], None] = lambda worker_id, is_refused: None,
    ) -> None:
        self._worker_id = worker_id
        self._address = address
        self._post = post
        self._max_queued = max_queued
        self._refused = refused
        self._num_units = 0
        self._model = ""
        self._turns = OrderTurns()
        self._log = get_logger().bind(worker_id=worker_id)
        self._stream: Dialled[Order] = Dialled(
            config,
            ServiceRole.WORKER,
            wire.dial_control,
            lambda orders: wire.TO_WORKER.pack(orders[0], now=now()),
            self._take,
            hello=wire.TO_WORKER.pack(replace(hello, worker_id=worker_id), now=now()),
        )
        dialling = redial(self._attempt, shortest=_SHORTEST_PAUSE, longest=_LONGEST_PAUSE)
        self._task = essential(dialling, f"link to {worker_id}")

    @property
    def is_open(self) -> bool:
        """True while the worker can be told something."""
        return self._stream.is_open

    def send(self, order: Order) -> None:
        """Queue one order; cut off a worker that does not read."""
        if not self._stream.is_open:
            return
        orders = self._turns.take(order)
        if len(self._turns) > self._max_queued:
            orders = (*orders, *self._turns.flush())
        self._send(orders)

    def _send(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if not self._stream.send(order):
                self._log.warning("worker_does_not_read", num_orders=self._max_queued)

    async def close(self) -> None:
        """Close the stream for good."""
        await end_tasks(self._task)

    async def _attempt(self) -> None:
        self._model, self._turns = "", OrderTurns()
        reason = await self._stream.once(self._address, Outbox(self._max_queued))
        if is_superseded(reason):
            self._log.warning("worker_follows_another_leader", reason=reason)
            self._refused(self._worker_id, True)
            return  # it lives and keeps its requests: this term is about to end
        self._post(WorkerGone(self._worker_id, f"worker {self._worker_id}: {reason}"))
        self._refused(self._worker_id, False)
        self._log.info("worker_stream_ended", address=self._address, reason=reason)

    def _take(self, packed: Any) -> None:
        message = wire.FROM_WORKER.unpack(packed)
        if isinstance(message, Snapshot) and message.info.worker_id != self._worker_id:
            limit = f"{self._worker_id!r}, the member at {self._address}"
            raise invalid("worker_id", message.info.worker_id, limit)
        if isinstance(message, Snapshot):
            if message.info.model != (self._model or message.info.model):
                limit = f"{self._model!r}, as in the stream's first snapshot"
                raise invalid("model", message.info.model, limit)
            self._model = message.info.model
            self._num_units = message.info.num_units
            self._refused(self._worker_id, False)
        for unit in _units(message):
            if unit >= self._num_units:
                raise invalid("unit", unit, f"below the worker's {self._num_units} DP units")
        for dispatch_id in _taken(message):
            self._send(self._turns.taken(dispatch_id))
        self._post(WorkerReported(self._worker_id, message))


def _taken(message: FromWorker) -> Sequence[int]:
    """Return the dispatches that the worker has taken."""
    match message:
        case Accepted(dispatch_id):
            return (dispatch_id,)
        case EndForward(dispatch_ids=dispatch_ids):
            return dispatch_ids
        case _:
            return ()


def _units(message: FromWorker) -> list[int]:
    """Return the DP units of the requests that a worker says it holds."""
    match message:
        case Snapshot():
            return [held.unit for held in message.held]
        case EndForward():
            return [held.unit for held in message.prefilled]
        case _:
            return []
