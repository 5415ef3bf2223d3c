"""The leader's reports on all workers to the autoscalers, once a second; nothing waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from headway.core.autoscaler.models import is_meant
from headway.errors import HeadwayError
from headway.policies.scaling.protocol import Fleet
from services.runtime import wire
from services.runtime.channel import Channels
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store

_INTERVAL = 1.0
_CALL_TIMEOUT = 1.0


class FleetLink:
    """A reporter of each model's fleet to the autoscaler of that model.

    Reports are dropped if there is no autoscaler or none answers.
    """

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        read: Callable[[], Mapping[str, Fleet] | None],
    ) -> None:
        self._config = config
        self._store = store
        self._read = read
        self._channels = Channels(config, ServiceRole.AUTOSCALER)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start reporting."""
        self._task = essential(self._run(), "fleet reports")

    async def close(self) -> None:
        """Stop reporting."""
        await end_tasks(self._task)
        await self._channels.close(keep=())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            fleets = self._read()
            if fleets is None:
                continue
            try:
                members = await self._store.members("autoscaler")
            except HeadwayError:
                continue
            addresses = {
                model: min((m.address for m in members if is_meant(model, m.model)), default="")
                for model in fleets
            }
            await self._channels.close(keep=addresses.values())
            calls = [self._tell(addresses[model], model, fleets[model]) for model in fleets]
            # the autoscaler itself reports what is missing
            await asyncio.gather(*calls, return_exceptions=True)

    async def _tell(self, address: str, model: str, fleet: Fleet) -> None:
        if not address:
            return
        await wire.report_fleet(self._channels.to(address), fleet, model, within=_CALL_TIMEOUT)
