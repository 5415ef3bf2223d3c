"""The messages of each stream, and of the calls between workers."""

from __future__ import annotations

from headway.messages import (
    ChangeRole,
    FromGateway,
    FromWorker,
    KvHeader,
    KvPart,
    ToGateway,
    ToWorker,
)
from headway.request import Request
from protos import common_pb2, scheduler_pb2, worker_pb2
from services.runtime.wire.codec import Codec, Union, codec_of
from services.runtime.wire.load_reports import pack_load_report, unpack_load_report

TO_WORKER: Union[ToWorker] = Union(worker_pb2.SchedulerToWorker)
FROM_WORKER: Union[FromWorker] = Union(
    worker_pb2.WorkerToScheduler, {"LoadReport": Codec(pack_load_report, unpack_load_report)}
)
FROM_GATEWAY: Union[FromGateway] = Union(scheduler_pb2.GatewayMessage)
TO_GATEWAY: Union[ToGateway] = Union(scheduler_pb2.SchedulerMessage)
KV: Union[KvHeader | KvPart | bytes] = Union(worker_pb2.KvChunk)
REQUEST: Codec[Request] = codec_of(Request, common_pb2.Request)
SET_ROLE: Codec[ChangeRole] = codec_of(ChangeRole, worker_pb2.SetRoleRequest)
