"""``process``: the supervisor of ``headway up`` starts and drains workers."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from headway.core.autoscaler.starts import InstanceStart, StartsReport
from headway.errors import Code, HeadwayError
from protos import supervisor_pb2, supervisor_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.store import Store

_CALL_TIMEOUT = 5.0
"""Seconds, those for a connection that has to be made anew included."""


class ProcessActuator:
    """Asks the cluster's supervisor, which is found by its membership."""

    name = "process"

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._num_starts = 0  # seen of the supervisor's

    async def ordered(self) -> Mapping[str, int]:
        """Workers that run or start, by role; those that drain count no more."""
        return dict((await self._replicas()).num_workers)

    async def starts(self) -> StartsReport:
        """As the supervisor has measured them; one that came back counts from 1 again."""
        found = await self._replicas()
        newest = max((start.number for start in found.starts), default=0)
        seen = self._num_starts if self._num_starts <= newest else 0
        self._num_starts = newest
        starts = [
            InstanceStart(start.worker_id, start.role, start.seconds, start.warm)
            for start in found.starts
            if start.number > seen
        ]
        return StartsReport(starts, found.num_standby)

    async def _replicas(self) -> supervisor_pb2.Replicas:
        stub = await self._stub()
        try:
            return await stub.GetReplicas(
                supervisor_pb2.GetReplicasRequest(), timeout=_CALL_TIMEOUT, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise wire.error_of(error) from error

    async def scale(self, role: str, num_instances: int) -> None:
        """Returns at once; the supervisor starts and drains."""
        stub = await self._stub()
        request = supervisor_pb2.ScaleRequest(role=role, num_workers=num_instances)
        try:
            await stub.Scale(request, timeout=_CALL_TIMEOUT, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise wire.error_of(error) from error

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Workers that serve; those that start are drained and started as before."""
        stub = await self._stub()
        request = supervisor_pb2.ChangeRoleRequest(
            source=source, target=target, num_workers=num_instances
        )
        try:
            reply = await stub.ChangeRole(request, timeout=_CALL_TIMEOUT, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise wire.error_of(error) from error
        return reply.num_changed

    async def _stub(self) -> supervisor_pb2_grpc.SupervisorAsyncStub:
        members = await self._store.members("supervisor")
        address = min((member.address for member in members), default="")
        if not address:
            message = "no supervisor is a member of this cluster: start it with `headway up`"
            raise HeadwayError(Code.UNAVAILABLE, message)
        if self._channel is None or address != self._address:
            await self.close()
            self._channel, self._address = open_channel(address, self._config), address
        return supervisor_pb2_grpc.SupervisorStub(self._channel)

    async def close(self) -> None:
        """Hang up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
