"""A standby: a loaded and warm worker without a role, known only to those who may give it one."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from headway.cluster import Role
from headway.errors import Code, HeadwayError, invalid
from protos import standby_pb2, standby_pb2_grpc
from services.runtime.membership import MembershipLease
from services.runtime.service import Runtime
from services.runtime.store import Member
from services.worker.config import WorkerConfig

MEMBERSHIP = "standby"
"""The service it joins as until it has a role."""

_Context = grpc.aio.ServicerContext[Any, Any]


class Standby(standby_pb2_grpc.StandbyServicer):
    """A worker that waits for a role."""

    def __init__(self, runtime: Runtime[WorkerConfig]) -> None:
        self._runtime = runtime
        self._is_loaded = False
        self._config: asyncio.Future[WorkerConfig] = asyncio.get_running_loop().create_future()

    async def role(self) -> WorkerConfig:
        """Join as a standby; once there is a role, leave and return the configuration with it."""
        config, address = self._runtime.config, self._runtime.address
        detail = {"pid": str(self._runtime.machine.pid())}
        member = Member(MEMBERSHIP, config.service_id, address, detail=detail)
        lease = MembershipLease(self._runtime.store, member)
        self._is_loaded = True
        lease.start()
        self._runtime.log.info("standing_by", address=address)
        try:
            return await self._config
        finally:
            await lease.stop()

    def activate(self, role: str) -> None:
        """See ``protos/standby.proto``."""
        if role not in [each.value for each in Role]:
            raise invalid("role", role, f"one of {', '.join(each.value for each in Role)}")
        if not self._is_loaded:
            message = "the model is still loading: wait until it is a member"
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        config = self._runtime.config
        if self._config.done():
            if self._config.result().role != role:
                message = f"role is {role!r}; this worker is a {self._config.result().role} one"
                raise HeadwayError(Code.FAILED_PRECONDITION, message)
            return
        self._config.set_result(config.model_copy(update={"role": role}))

    async def Activate(  # noqa: N802 (the proto's name)
        self, request: standby_pb2.ActivateRequest, context: _Context
    ) -> standby_pb2.ActivateReply:
        """See ``protos/standby.proto``."""
        self.activate(request.role)
        return standby_pb2.ActivateReply()
