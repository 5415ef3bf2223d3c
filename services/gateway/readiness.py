"""What this gateway needs to serve: a scheduler that leads, and workers that prefill and decode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from headway.cluster import Role
from headway.errors import HeadwayError
from services.runtime.essential import essential
from services.runtime.store import Store

_INTERVAL = 0.5


class Readiness:
    """The reasons why requests would have to wait, from the store and the scheduler's stream.

    While the store is away, the workers last seen count. ``tell`` hears twice a second whether
    there are none.
    """

    def __init__(
        self,
        store: Store,
        is_connected: Callable[[], bool],
        tell: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._store = store
        self._is_connected = is_connected
        self._tell = tell
        self._missing = ["the workers are not known yet"]
        self._is_store_away = False
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Watch the workers from now on."""
        self._task = essential(self._run(), "readiness")

    def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    @property
    def reasons(self) -> list[str]:
        """Return what is missing; empty while the gateway can serve."""
        if self._is_connected():
            return list(self._missing)
        away = ["the store does not answer"] if self._is_store_away else []
        return ["no scheduler leads", *away, *self._missing]

    async def _run(self) -> NoReturn:
        while True:
            try:
                roles = {member.role for member in await self._store.members("worker")}
                self._missing = _missing(roles)
                self._is_store_away = False
            except HeadwayError:
                self._is_store_away = True
            await self._tell(not self.reasons)
            await asyncio.sleep(_INTERVAL)


def _missing(names: set[str]) -> list[str]:
    roles = [role for role in Role if role.value in names]
    reasons = []
    if not any(role.prefills for role in roles):
        reasons.append("no worker prefills")
    if not any(role.decodes for role in roles):
        reasons.append("no worker decodes")
    return reasons
