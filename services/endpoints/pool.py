"""Endpoints under one core that chooses among them: they are listed, watched and asked for here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp

from headway.core.picker.core import PickerCore
from headway.core.picker.events import (
    EndpointListed,
    EndpointStatus,
    EndpointUnlisted,
    Pick,
    PickAsked,
    PickAskedAtOnce,
    PickEnded,
    PickerAction,
    PickerEvent,
    Refuse,
)
from headway.core.scheduler.events import Decision, Note
from headway.errors import HeadwayError
from headway.request import StreamKey
from services.endpoints.choosing import WatchIntervals
from services.endpoints.endpoints_file import EndpointEntry, Listed, resolve
from services.endpoints.pool_watch import PoolWatch
from services.endpoints.watcher import Watcher
from services.runtime.clock import Clock
from services.runtime.driver import Driver
from services.runtime.essential import end_tasks, essential
from services.runtime.kubernetes import require_client
from services.runtime.logs import get_logger

Answer = Pick | Refuse


class EndpointPool:
    """All endpoints of one core. ``read`` returns their entries, or raises HeadwayError.

    ``fixed``: those that no entry names. ``client`` scrapes them.
    """

    def __init__(
        self,
        core: PickerCore,
        read: Callable[[], Sequence[EndpointEntry]],
        client: aiohttp.ClientSession,
        intervals: WatchIntervals,
        clock: Clock,
        fixed: Sequence[Listed] = (),
    ) -> None:
        self._core = core
        self._read = read
        self._client = client
        self._intervals = intervals
        self._clock = clock
        self._fixed = fixed
        self._log = get_logger()
        self._entries: Sequence[EndpointEntry] = ()
        self._driver: Driver[PickerEvent, PickerAction] = Driver(core, self._perform, clock)
        self._answers: dict[StreamKey, asyncio.Future[Answer]] = {}
        self._watchers: dict[str, Watcher] = {}
        self._pools: dict[str, PoolWatch] = {}
        self._pods_changed = asyncio.Event()
        self._listing: asyncio.Task[object] | None = None
        self.first_model = ""
        """The model of the first endpoint that is listed; "" for any."""
        self.models: frozenset[str] = frozenset()

    async def start(self) -> None:
        """List the endpoints, and go on watching them; HeadwayError where that cannot begin."""
        self._entries = self._read()
        if any(entry.pool for entry in self._entries):
            require_client("an InferencePool")
        self._listing = essential(self._list_again(), "endpoints")
        await self._list()

    async def close(self) -> None:
        """Stop watching; nobody is answered any more."""
        await end_tasks(self._listing)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await asyncio.gather(*(watcher.close() for watcher in self._watchers.values()))
        self._driver.close()

    # --- requests ---------------------------------------------------------------------

    def ask(self, question: PickAsked | PickAskedAtOnce, key: StreamKey) -> asyncio.Future[Answer]:
        """Return the answer that will come; ``ended`` lets go of it."""
        future = asyncio.get_running_loop().create_future()
        self._answers[key] = future
        self._driver.post(question)
        return future

    def post(self, event: PickerEvent) -> None:
        """Pass an event to the core."""
        self._driver.post(event)

    def ended(self, key: StreamKey) -> None:
        """Note that a request has ended, answered or not."""
        self._answers.pop(key, None)
        self._driver.post(PickEnded(key))

    def endpoints(self) -> list[EndpointStatus]:
        """Return the figures of all endpoints."""
        return self._core.endpoints(now=self._clock.now())

    def _perform(self, action: PickerAction) -> None:
        match action:
            case Pick() | Refuse():
                future = self._answers.pop(action.key, None)
                if future is not None and not future.done():
                    future.set_result(action)
            case Note():
                self._log.warning(action.event, endpoint=action.worker_id, detail=action.detail)
            case Decision():
                for chosen in action.chosen:
                    self._log.debug(
                        "decided",
                        rule=action.rule,
                        request_id=chosen.request_id,
                        endpoint=chosen.unit.worker_id,
                        waited=round(chosen.waited, 6),
                    )

    # --- endpoints --------------------------------------------------------------------

    async def _list_again(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._intervals.resolve):
                    await self._pods_changed.wait()
            self._pods_changed.clear()
            try:
                self._entries = await asyncio.to_thread(self._read)
            except HeadwayError as error:
                self._log.error("endpoints_unchanged", reason=error.message)
            await self._list()

    async def _list(self) -> None:
        """Watch what is listed and new; forget what is listed no longer."""
        await self._watch_pools()
        try:
            resolved = await resolve(self._entries, lambda pool: self._pools[pool].endpoints)
        except OSError as error:
            self._log.error("endpoints_unchanged", reason=f"a name cannot be looked up: {error}")
            return
        listed = {each.info.address: each for each in (*self._fixed, *resolved)}
        for address, watcher in list(self._watchers.items()):
            if listed.get(address) != watcher.listed:
                del self._watchers[address]
                await watcher.close()
                if address not in listed:
                    self._driver.post(EndpointUnlisted(address))
        for address, each in listed.items():
            if address not in self._watchers:
                self._driver.post(EndpointListed(each.info))
                self._watchers[address] = Watcher(
                    *(each, self._client, self._intervals.scrape, self._intervals.timeout),
                    *(self._clock.now, self._driver.post),
                )
        models = [each.info.model for each in listed.values()]
        self.models, self.first_model = frozenset(models), next(iter(models), "")

    async def _watch_pools(self) -> None:
        named = {entry.pool for entry in self._entries if entry.pool}
        for name in self._pools.keys() - named:
            await self._pools.pop(name).close()
        for name in sorted(named - self._pools.keys()):
            self._pools[name] = PoolWatch(name, self._pods_changed.set)
