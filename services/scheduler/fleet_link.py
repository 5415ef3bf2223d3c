"""The leader tells the autoscaler of all workers, once a second; nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from headway.errors import HeadwayError
from headway.policies.scaling.protocol import Fleet
from protos import autoscaler_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.store import Store

_INTERVAL = 1.0
_CALL_TIMEOUT = 1.0


class FleetLink:
    """Reads the fleet and reports it; where no autoscaler is, or none answers, it is dropped."""

    def __init__(
        self, config: ServiceConfig, store: Store, read: Callable[[], Fleet | None]
    ) -> None:
        self._config = config
        self._store = store
        self._read = read
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Report from now on."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Report no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._hang_up()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            fleet = self._read()
            if fleet is None:
                continue
            try:
                await self._tell(fleet)
            except (grpc.aio.AioRpcError, HeadwayError, OSError):
                continue  # the autoscaler says itself what it lacks

    async def _tell(self, fleet: Fleet) -> None:
        members = await self._store.members("autoscaler")
        address = min((member.address for member in members), default="")
        if address != self._address:
            await self._hang_up()
            self._address = address
            self._channel = open_channel(address, self._config) if address else None
        if self._channel is not None:
            stub = autoscaler_pb2_grpc.AutoscalerStub(self._channel)
            await stub.ReportFleet(wire.pack_fleet(fleet), timeout=_CALL_TIMEOUT)

    async def _hang_up(self) -> None:
        channel, self._channel, self._address = self._channel, None, ""
        if channel is not None:
            await channel.close()
