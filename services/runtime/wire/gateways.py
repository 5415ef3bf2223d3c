"""Between gateways and the scheduler leader."""

from __future__ import annotations

from collections.abc import Sequence

from headway.cluster import Role
from headway.errors import Code, invalid
from headway.messages import CancelStream, GatewayHello, Lost, Placed, Rejected
from headway.request import Request, StreamKey
from protos import scheduler_pb2 as pb
from services.runtime.wire.checks import (
    ROLE_FROM_PB,
    ROLE_TO_PB,
    a_unit,
    an_id,
    finite,
    key,
    known,
    text,
)
from services.runtime.wire.requests import pack_request, unpack_request
from services.runtime.wire.status import code_of, status_of_code


def pack_to_scheduler(message: GatewayHello | Request | CancelStream) -> pb.GatewayMessage:
    """What a gateway says."""
    match message:
        case GatewayHello():
            hello = pb.GatewayHello(gateway_id=message.gateway_id, address=message.address)
            return pb.GatewayMessage(hello=hello)
        case Request():
            return pb.GatewayMessage(submit=pack_request(message))
        case CancelStream(StreamKey(gateway_id, stream_id)):
            cancel = pb.CancelRequest(gateway_id=gateway_id, stream_id=stream_id)
            return pb.GatewayMessage(cancel=cancel)


def unpack_to_scheduler(packed: pb.GatewayMessage) -> GatewayHello | Request | CancelStream:
    """What a gateway says, checked."""
    match packed.WhichOneof("body"):
        case "hello":
            hello = packed.hello
            return GatewayHello(
                an_id(hello.gateway_id, "gateway_id"), an_id(hello.address, "address")
            )
        case "submit":
            return unpack_request(packed.submit)
        case "cancel":
            return CancelStream(key(packed.cancel.gateway_id, packed.cancel.stream_id))
        case body:
            raise invalid("body", body, "hello, submit or cancel")


def pack_to_gateway(message: Placed | Rejected | Lost) -> pb.SchedulerMessage:
    """What the scheduler says; the stream says to which gateway."""
    match message:
        case Placed():
            placed = pb.Placed(
                stream_id=message.key.stream_id,
                worker_id=message.worker_id,
                unit=message.unit,
                role=ROLE_TO_PB[message.role],
            )
            return pb.SchedulerMessage(placed=placed)
        case Rejected():
            rejected = pb.Rejected(
                stream_id=message.key.stream_id,
                code=status_of_code(message.code),
                message=message.message,
                retry_after=message.retry_after,
            )
            return pb.SchedulerMessage(rejected=rejected)
        case Lost():
            stream_ids = [lost.stream_id for lost in message.keys]
            return pb.SchedulerMessage(lost=pb.Lost(stream_ids=stream_ids, reason=message.reason))


def unpack_to_gateway(packed: pb.SchedulerMessage, gateway_id: str) -> Placed | Rejected | Lost:
    """What the scheduler says to ``gateway_id``, checked."""
    match packed.WhichOneof("body"):
        case "placed":
            role: Role = known(ROLE_FROM_PB, packed.placed.role, "role")
            stream = StreamKey(gateway_id, packed.placed.stream_id)
            worker_id = an_id(packed.placed.worker_id, "worker_id")
            return Placed(stream, worker_id, a_unit(packed.placed.unit), role)
        case "rejected":
            rejected = packed.rejected
            code: Code = code_of(rejected.code)
            return Rejected(
                StreamKey(gateway_id, rejected.stream_id),
                code,
                text(rejected.message),
                max(0.0, finite(rejected.retry_after, "retry_after")),
            )
        case "lost":
            keys = tuple(StreamKey(gateway_id, stream) for stream in packed.lost.stream_ids)
            return Lost(keys, text(packed.lost.reason))
        case body:
            raise invalid("body", body, "placed, rejected or lost")


# --- several at once ------------------------------------------------------------------


def pack_all_to_scheduler(
    messages: Sequence[GatewayHello | Request | CancelStream],
) -> pb.GatewayMessage:
    """One message that says them all, in order; there is at least one."""
    if len(messages) == 1:
        return pack_to_scheduler(messages[0])
    batch = pb.GatewayBatch(messages=[pack_to_scheduler(message) for message in messages])
    return pb.GatewayMessage(batch=batch)


def unpack_all_to_scheduler(
    packed: pb.GatewayMessage,
) -> list[GatewayHello | Request | CancelStream]:
    """What a gateway says, checked: one message, or those of a batch."""
    if packed.WhichOneof("body") == "batch":
        return [unpack_to_scheduler(message) for message in packed.batch.messages]
    return [unpack_to_scheduler(packed)]


def pack_all_to_gateway(messages: Sequence[Placed | Rejected | Lost]) -> pb.SchedulerMessage:
    """One message that says them all, in order; there is at least one."""
    if len(messages) == 1:
        return pack_to_gateway(messages[0])
    batch = pb.SchedulerBatch(messages=[pack_to_gateway(message) for message in messages])
    return pb.SchedulerMessage(batch=batch)


def unpack_all_to_gateway(
    packed: pb.SchedulerMessage, gateway_id: str
) -> list[Placed | Rejected | Lost]:
    """What the scheduler says to ``gateway_id``, checked: one message, or those of a batch."""
    if packed.WhichOneof("body") == "batch":
        return [unpack_to_gateway(message, gateway_id) for message in packed.batch.messages]
    return [unpack_to_gateway(packed, gateway_id)]
