"""Gateways' streams to the leader: submissions in, answers out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from headway.core.scheduler.events import Decision, GatewayConnected, GatewayGone
from headway.errors import Code, HeadwayError, invalid
from headway.messages import (
    CancelStream,
    FromGateway,
    GatewayHello,
    ToGateway,
)
from headway.request import Request
from protos import scheduler_pb2, scheduler_pb2_grpc
from services.runtime import wire
from services.runtime.logs import get_logger
from services.scheduler.explanations import lines_about

Told = GatewayConnected | GatewayGone | Request | CancelStream
_HELLO_TIMEOUT = 5.0

_Queue = asyncio.Queue[ToGateway | HeadwayError]

_MOST_GATHERED = 1024


class GatewayLinks(scheduler_pb2_grpc.SchedulerServicer):
    """All gateways' streams: refused while another scheduler leads.

    ``leader_address`` is where the leader is, "" where nobody knows. One stream a gateway: a
    newer one ends the older.
    """

    def __init__(self, leader_address: Callable[[], str], max_queued: int) -> None:
        self._leader_address = leader_address
        self._max_queued = max_queued
        self._post: Callable[[Told], None] | None = None
        self._decisions: Callable[[], Sequence[Decision]] = tuple
        self._queues: dict[str, _Queue] = {}
        self._log = get_logger()

    # --- leadership -------------------------------------------------------------------

    def open(
        self, post: Callable[[Told], None], decisions: Callable[[], Sequence[Decision]] = tuple
    ) -> None:
        """This scheduler leads: let gateways in, and tell who asks of its ``decisions``."""
        self._post, self._decisions = post, decisions

    def close(self) -> None:
        """It leads no more: send gateways away."""
        self._post, self._decisions = None, tuple
        for gateway_id in list(self._queues):
            self._end(gateway_id, self._not_leading())

    def _not_leading(self) -> HeadwayError:
        address = self._leader_address()
        where = f"the leader is at {address}" if address else "no leader is known: try again soon"
        return HeadwayError(Code.FAILED_PRECONDITION, f"this scheduler stands by; {where}")

    # --- answers ----------------------------------------------------------------------

    def send(self, gateway_id: str, answer: ToGateway) -> None:
        """Queue one answer; without a stream it is dropped, for the gateway will ask again."""
        queue = self._queues.get(gateway_id)
        if queue is None:
            return
        try:
            queue.put_nowait(answer)
        except asyncio.QueueFull:
            self._log.warning("gateway_does_not_read", gateway_id=gateway_id)
            message = f"{self._max_queued} answers are unread: read, or open a new stream"
            self._end(gateway_id, HeadwayError(Code.RESOURCE_EXHAUSTED, message))

    def _end(self, gateway_id: str, error: HeadwayError) -> None:
        queue = self._queues.pop(gateway_id, None)
        if queue is None:
            return
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(error)

    # --- RPC --------------------------------------------------------------------------

    async def Connect(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[scheduler_pb2.GatewayMessage],
        context: grpc.aio.ServicerContext[
            scheduler_pb2.GatewayMessage, scheduler_pb2.SchedulerMessage
        ],
    ) -> AsyncIterator[scheduler_pb2.SchedulerMessage]:
        """See ``protos/scheduler.proto``."""
        try:
            async for answers in self._serve(aiter(request_iterator)):
                yield wire.TO_GATEWAY.pack_all(answers)
        except HeadwayError as error:
            await wire.abort(context, error)

    async def Explain(  # noqa: N802 (the proto's name)
        self,
        request: scheduler_pb2.ExplainRequest,
        context: grpc.aio.ServicerContext[scheduler_pb2.ExplainRequest, scheduler_pb2.ExplainReply],
    ) -> scheduler_pb2.ExplainReply:
        """See ``protos/scheduler.proto``."""
        if self._post is None:
            await wire.abort(context, self._not_leading())
        found = lines_about(request.request_id, self._decisions())
        return scheduler_pb2.ExplainReply(decisions=found)

    async def _serve(
        self, messages: AsyncIterator[scheduler_pb2.GatewayMessage]
    ) -> AsyncIterator[list[ToGateway]]:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                gateway_id = _greeting(await anext(messages, None))
        except TimeoutError:
            message = f"no GatewayHello came in {_HELLO_TIMEOUT:g} s: send it first"
            raise HeadwayError(Code.DEADLINE_EXCEEDED, message) from None
        post = self._post
        if post is None:
            raise self._not_leading()
        self._end(gateway_id, HeadwayError(Code.CANCELLED, "a newer stream has been opened"))
        queue: _Queue = asyncio.Queue(self._max_queued)
        self._queues[gateway_id] = queue
        self._log.info("gateway_connected", gateway_id=gateway_id)
        post(GatewayConnected(gateway_id))
        reader = asyncio.create_task(self._read(messages, gateway_id, queue, post))
        try:
            while True:
                yield await _gathered(queue)
        finally:
            reader.cancel()
            if self._queues.get(gateway_id) is queue:
                del self._queues[gateway_id]
                post(GatewayGone(gateway_id))

    async def _read(
        self,
        messages: AsyncIterator[scheduler_pb2.GatewayMessage],
        gateway_id: str,
        queue: _Queue,
        post: Callable[[Told], None],
    ) -> None:
        """Until the gateway hangs up, talks nonsense, or is replaced."""
        end = HeadwayError(Code.CANCELLED, "the gateway has hung up")
        try:
            async for packed in messages:
                for message in wire.FROM_GATEWAY.unpack_all(packed):
                    checked = _checked(message, gateway_id)
                    if self._queues.get(gateway_id) is not queue:
                        return
                    post(checked)
        except HeadwayError as error:
            end = error
        if self._queues.get(gateway_id) is queue:
            self._end(gateway_id, end)
            post(GatewayGone(gateway_id))


async def _gathered(queue: _Queue) -> list[ToGateway]:
    """The next answer and those behind it: one message costs as much as a hundred answers."""
    answers: list[ToGateway] = []
    entry = await queue.get()
    while not isinstance(entry, HeadwayError):
        answers.append(entry)
        if queue.empty() or len(answers) >= _MOST_GATHERED:
            return answers
        entry = queue.get_nowait()
    if answers:
        queue.put_nowait(entry)  # the end is told after the answers
        return answers
    raise entry


def _greeting(first: scheduler_pb2.GatewayMessage | None) -> str:
    hello = wire.FROM_GATEWAY.unpack(first) if first is not None else None
    if not isinstance(hello, GatewayHello):
        raise invalid("the first message", type(hello).__name__, "a GatewayHello")
    if not hello.gateway_id:
        raise invalid("gateway_id", hello.gateway_id, "a name")
    return hello.gateway_id


def _checked(message: FromGateway, gateway_id: str) -> Request | CancelStream:
    if isinstance(message, GatewayHello):
        raise invalid("a later message", "GatewayHello", "a Request or a CancelRequest")
    named = message.gateway_id if isinstance(message, Request) else message.key.gateway_id
    if named != gateway_id:
        raise invalid("gateway_id", named, f"{gateway_id!r}, as in the stream's hello")
    return message
