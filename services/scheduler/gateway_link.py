"""Gateways' streams to the leader: submissions in, answers out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import grpc

from headway.core.scheduler.events import Decision, GatewayConnected, GatewayDisconnected
from headway.errors import Code, HeadwayError, invalid
from headway.messages import (
    GatewayHello,
    ToGateway,
    ToScheduler,
)
from headway.picture import ClusterPicture
from protos import scheduler_pb2, scheduler_pb2_grpc
from services.runtime import wire
from services.runtime.identity.guard import require_id
from services.runtime.logs import get_logger
from services.runtime.stream import Served
from services.scheduler.explanations import lines_about

Told = GatewayConnected | GatewayDisconnected | ToScheduler
_HELLO_TIMEOUT = 5.0

_MOST_GATHERED = 1024
MOST_QUEUED = 65_536
"""Messages for a peer that does not read, before it is dropped."""


class GatewayLinks(scheduler_pb2_grpc.SchedulerServicer):
    """The streams of all gateways, refused while another scheduler leads.

    ``leader_address``: the leader's, "" if unknown. Each gateway has one stream; a newer one ends
    the older.
    """

    def __init__(self, leader_address: Callable[[], str], now: Callable[[], float]) -> None:
        self._leader_address = leader_address
        self._now = now
        self._post: Callable[[Told], None] | None = None
        self._decisions: Callable[[], Sequence[Decision]] = tuple
        self._draw: Callable[[], ClusterPicture] | None = None
        self._streams: dict[str, Served[ToGateway]] = {}
        self._log = get_logger()

    # --- leadership -------------------------------------------------------------------

    def open(
        self,
        post: Callable[[Told], None],
        decisions: Callable[[], Sequence[Decision]] = tuple,
        draw: Callable[[], ClusterPicture] | None = None,
    ) -> None:
        """Start leading: accept gateways, and show them ``decisions`` and the cluster."""
        self._post, self._decisions, self._draw = post, decisions, draw

    def close(self) -> None:
        """Stop leading: close all gateways' streams."""
        self._post, self._decisions, self._draw = None, tuple, None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end(self._not_leading())

    def _not_leading(self) -> HeadwayError:
        address = self._leader_address()
        where = f"the leader is at {address}" if address else "no leader is known: try again soon"
        return HeadwayError(Code.FAILED_PRECONDITION, f"this scheduler stands by; {where}")

    # --- answers ----------------------------------------------------------------------

    def send(self, gateway_id: str, answer: ToGateway) -> None:
        """Queue one answer; drop it without a stream, because the gateway will ask again."""
        stream = self._streams.get(gateway_id)
        if stream is not None and not stream.send(answer):
            self._log.warning("gateway_does_not_read", gateway_id=gateway_id)

    # --- RPC --------------------------------------------------------------------------

    async def Connect(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[scheduler_pb2.GatewayMessage],
        context: grpc.aio.ServicerContext[
            scheduler_pb2.GatewayMessage, scheduler_pb2.SchedulerMessage
        ],
    ) -> AsyncIterator[scheduler_pb2.SchedulerMessage]:
        """See ``protos/scheduler.proto``."""
        async for answers in self._serve(aiter(request_iterator), context):
            yield wire.TO_GATEWAY.pack_all(answers)

    async def Explain(  # noqa: N802 (the proto's name)
        self,
        request: scheduler_pb2.ExplainRequest,
        context: grpc.aio.ServicerContext[scheduler_pb2.ExplainRequest, scheduler_pb2.ExplainReply],
    ) -> scheduler_pb2.ExplainReply:
        """See ``protos/scheduler.proto``."""
        if self._post is None:
            raise self._not_leading()
        lines = lines_about(request.request_id, self._decisions())
        return scheduler_pb2.ExplainReply(decisions=lines)

    async def Picture(  # noqa: N802 (the proto's name)
        self,
        request: scheduler_pb2.PictureRequest,
        context: grpc.aio.ServicerContext[
            scheduler_pb2.PictureRequest, scheduler_pb2.ClusterPicture
        ],
    ) -> scheduler_pb2.ClusterPicture:
        """See ``protos/scheduler.proto``."""
        if self._draw is None:
            raise self._not_leading()
        packed: scheduler_pb2.ClusterPicture = wire.PICTURE.pack(self._draw())
        return packed

    async def _serve(
        self, messages: AsyncIterator[scheduler_pb2.GatewayMessage], context: Any
    ) -> AsyncIterator[list[ToGateway]]:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):
                gateway_id = self._greeting(await anext(messages, None))
        except TimeoutError:
            message = f"no GatewayHello arrived within {_HELLO_TIMEOUT:g} s: send it first"
            raise HeadwayError(Code.DEADLINE_EXCEEDED, message) from None
        require_id(context, gateway_id)
        post = self._post
        if post is None:
            raise self._not_leading()
        older = self._streams.pop(gateway_id, None)
        if older is not None:
            older.end(HeadwayError(Code.CANCELLED, "a newer stream has been opened"))
        gone = partial(self._gone, gateway_id, post)
        stream = Served[ToGateway](MOST_QUEUED, most=_MOST_GATHERED, on_end=gone)
        self._streams[gateway_id] = stream
        self._log.info("gateway_connected", gateway_id=gateway_id)
        post(GatewayConnected(gateway_id))
        farewell = HeadwayError(Code.CANCELLED, "the gateway closed its stream")
        take = partial(self._take, gateway_id, post)
        async for answers in stream.serve(messages, take, farewell=farewell):
            yield answers

    def _gone(self, gateway_id: str, post: Callable[[Told], None]) -> None:
        """Tell the core, unless a newer stream has replaced the one that ended."""
        if self._streams.pop(gateway_id, None) is not None:
            post(GatewayDisconnected(gateway_id))

    def _greeting(self, first: scheduler_pb2.GatewayMessage | None) -> str:
        hello = wire.FROM_GATEWAY.unpack(first, now=self._now()) if first is not None else None
        if not isinstance(hello, GatewayHello):
            raise invalid("the first message", type(hello).__name__, "a GatewayHello")
        if not hello.gateway_id:
            raise invalid("gateway_id", hello.gateway_id, "a name")
        return hello.gateway_id

    def _take(self, gateway_id: str, post: Callable[[Told], None], packed: Any) -> None:
        for message in wire.FROM_GATEWAY.unpack_all(packed, now=self._now()):
            if isinstance(message, GatewayHello):
                raise invalid("a later message", "GatewayHello", "a Request or a CancelStream")
            if message.key.gateway_id != gateway_id:
                limit = f"{gateway_id!r}, as in the stream's hello"
                raise invalid("gateway_id", message.key.gateway_id, limit)
            post(message)
