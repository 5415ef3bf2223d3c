"""The messages of each stream, and of the calls between workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from headway.instants import later
from headway.messages import (
    ChangeRole,
    FromGateway,
    FromWorker,
    KvHeader,
    KvPart,
    KvSource,
    ToGateway,
    ToWorker,
)
from headway.request import Request
from protos import common_pb2, scheduler_pb2, worker_pb2
from services.runtime.wire.codec import Codec, Union, codec_of
from services.runtime.wire.load_reports import pack_load_report, unpack_load_report

M = TypeVar("M")


class Timed(Generic[M]):
    """Messages with instants, of a host whose clock says ``now`` (``headway.instants``)."""

    def __init__(self, union: Union[M]) -> None:
        self._union = union

    def pack(self, message: M, *, now: float) -> Any:
        """Return the protobuf message; send it at once, because its instants count from now."""
        return self._union.pack(later(message, -now))

    def unpack(self, packed: Any, *, now: float) -> M:
        """Return the body, checked; refuse one without a body."""
        return later(self._union.unpack(packed), now)

    def pack_all(self, messages: Sequence[M], *, now: float) -> Any:
        """Return one protobuf message with all messages (at least one), in order."""
        return self._union.pack_all([later(message, -now) for message in messages])

    def unpack_all(self, packed: Any, *, now: float) -> list[M]:
        """Return the message, or those of the batch, checked; refuse a batch in a batch."""
        return [later(message, now) for message in self._union.unpack_all(packed)]


TO_WORKER: Timed[ToWorker] = Timed(Union(worker_pb2.SchedulerToWorker))
FROM_WORKER: Union[FromWorker] = Union(
    worker_pb2.WorkerToScheduler, {"LoadReport": Codec(pack_load_report, unpack_load_report)}
)
FROM_GATEWAY: Timed[FromGateway] = Timed(Union(scheduler_pb2.GatewayMessage))
TO_GATEWAY: Union[ToGateway] = Union(scheduler_pb2.SchedulerMessage)
KV: Timed[KvHeader | KvPart | KvSource | bytes] = Timed(Union(worker_pb2.KvChunk))
REQUEST: Codec[Request] = codec_of(Request, common_pb2.Request)
SET_ROLE: Codec[ChangeRole] = codec_of(ChangeRole, worker_pb2.SetRoleRequest)
