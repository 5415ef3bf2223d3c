"""A gateway's needs: a scheduler that leads, and workers that prefill and decode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from headway.cluster import Role
from headway.core.autoscaler.models import is_meant
from headway.errors import HeadwayError
from services.runtime.essential import essential
from services.runtime.store import Member, Store

_INTERVAL = 0.5


class Readiness:
    """The reasons why requests would have to wait, from the store and the scheduler's stream.

    While the store is away, the workers last seen count. ``tell`` hears twice a second whether
    there are none, ``lack`` of changes in what workers a model lacks.
    """

    def __init__(
        self,
        store: Store,
        is_connected: Callable[[], bool],
        tell: Callable[[bool], Awaitable[None]],
        lack: Callable[[Mapping[str, str]], None],
        models: Sequence[str] = (),
    ) -> None:
        """``models``: the names of several; for one, any worker counts."""
        self._models = models
        self._store = store
        self._is_connected = is_connected
        self._tell = tell
        self._lack = lack
        self._lacking: Mapping[str, str] = {}
        self._missing: Mapping[str, Sequence[str]] = dict.fromkeys(
            models or [""], ("the workers are not known yet",)
        )
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
        """Return why no request can be served; empty while those of some model can be."""
        return [] if any(self.serves(model) for model in self._missing) else self.lacks

    @property
    def lacks(self) -> list[str]:
        """Return all that is missing, for every model."""
        lacking = [
            f"{reason} for {model!r}" if model else reason
            for model, reasons in self._missing.items()
            for reason in reasons
        ]
        if self._is_connected():
            return lacking
        away = ["the store does not answer"] if self._is_store_away else []
        return ["no scheduler leads", *away, *lacking]

    def serves(self, model: str) -> bool:
        """Return whether a model's requests can be served."""
        return self._is_connected() and not self._missing.get(model, ())

    async def _run(self) -> NoReturn:
        while True:
            try:
                self._see(await self._store.members("worker"))
                self._is_store_away = False
            except HeadwayError:
                self._is_store_away = True
            await self._tell(not self.reasons)
            await asyncio.sleep(_INTERVAL)

    def _see(self, workers: Sequence[Member]) -> None:
        """Compare the workers that there are with those that each model needs."""
        self._missing = {model: _missing(_of_model(model, workers)) for model in self._missing}
        lacking = {model: "; ".join(reasons) for model, reasons in self._missing.items() if reasons}
        if lacking != self._lacking:
            self._lacking = lacking
            self._lack(lacking)


def _of_model(model: str, workers: Iterable[Member]) -> set[str]:
    """Return the roles of a model's workers; of all for ""."""
    return {worker.role for worker in workers if is_meant(model, worker.model)}


def _missing(names: set[str]) -> list[str]:
    roles = [role for role in Role if role.value in names]
    reasons = []
    if not any(role.prefills for role in roles):
        reasons.append("no worker prefills")
    if not any(role.decodes for role in roles):
        reasons.append("no worker decodes")
    return reasons
