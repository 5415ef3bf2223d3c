"""A worker of this machine that serves another role from now on, and after a restart, too."""

from __future__ import annotations

from dataclasses import replace

import grpc

from headway.cluster import Role
from headway.messages import ChangeRole
from protos import worker_pb2_grpc
from services.local.supervised import SupervisedProcess
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig

_CALL_TIMEOUT = 2.0


async def set_role(process: SupervisedProcess, role: str, config: ServiceConfig) -> bool:
    """Whether it has taken the role; one that cannot be reached stays what it is."""
    async with open_channel(process.address, config) as channel:
        request = wire.SET_ROLE.pack(ChangeRole(Role(role)))
        try:
            await worker_pb2_grpc.WorkerStub(channel).SetRole(request, timeout=_CALL_TIMEOUT)
        except grpc.aio.AioRpcError:
            return False
    process.spec = replace(process.spec, role=role, flags=(*process.spec.flags, "--role", role))
    return True
