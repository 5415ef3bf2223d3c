"""``process``: the supervisor of ``headway up`` starts and drains workers."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from headway.core.autoscaler.starts import StartsReport
from headway.errors import Code, HeadwayError
from services.autoscaler.actuators.protocol import Actuator
from services.runtime.channel import Channels
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from services.runtime.wire.calls import Replicas, change_role, replicas, scale

_CALL_TIMEOUT = 5.0
"""Seconds, including the time to reconnect."""


class ProcessActuator(Actuator):
    """An actuator that calls the cluster's supervisor, which it finds by its membership."""

    name = "process"

    def __init__(self, config: ServiceConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._channels = Channels(config, ServiceRole.SUPERVISOR)
        self._num_starts = 0  # last start read from the supervisor

    async def ordered(self) -> Mapping[str, int]:
        """Return the workers that run or start, by role; those that drain do not count."""
        return (await self._replicas()).num_workers

    async def starts(self) -> StartsReport:
        """Return the starts that the supervisor measured, each once."""
        running = await self._replicas()
        newest = max((number for number, _ in running.starts), default=0)
        seen = self._num_starts if self._num_starts <= newest else 0
        self._num_starts = newest
        starts = [start for number, start in running.starts if number > seen]
        return StartsReport(starts, running.num_standby)

    async def _replicas(self) -> Replicas:
        return await replicas(await self._supervisor(), within=_CALL_TIMEOUT)

    async def scale(self, role: str, num_instances: int) -> None:
        """Return at once; the supervisor starts and drains."""
        await scale(await self._supervisor(), role, num_instances, within=_CALL_TIMEOUT)

    async def change_role(self, source: str, target: str, num_instances: int) -> int:
        """Change workers that serve; those that start are drained and started as before."""
        supervisor = await self._supervisor()
        return await change_role(supervisor, source, target, num_instances, within=_CALL_TIMEOUT)

    async def _supervisor(self) -> grpc.aio.Channel:
        members = await self._store.members("supervisor")
        address = min((member.address for member in members), default="")
        if not address:
            message = "no supervisor is a member of this cluster: start it with `headway up`"
            raise HeadwayError(Code.UNAVAILABLE, message)
        await self._channels.close(keep=(address,))
        return self._channels.to(address)

    async def close(self) -> None:
        """Close the channel."""
        await self._channels.close()
