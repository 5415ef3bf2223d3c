"""Who is in the cluster: a lease of one's own, and a watch over others'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.errors import HeadwayError
from services.runtime.logs import get_logger
from services.runtime.store import MEMBER_TTL, Member, Store

WATCH_INTERVAL = 0.25


class MembershipLease:
    """Keeps a member in the store; outages are outlived and logged once."""

    def __init__(self, store: Store, member: Member) -> None:
        self._store = store
        self._member = member
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger()

    def start(self) -> None:
        """Join, and renew three times in a lease's life."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._store.leave(self._member)
        except HeadwayError as error:
            self._log.warning("membership_not_left", error=error.message)

    async def _run(self) -> None:
        reached = True
        while True:
            try:
                await self._store.join(self._member)
                if not reached:
                    self._log.info("store_reached")
                reached = True
            except HeadwayError as error:
                if reached:
                    self._log.warning("membership_not_renewed", error=error.message)
                reached = False
            await asyncio.sleep(MEMBER_TTL / 3)


class MembershipWatch:
    """Polls the members of one service. While the store is away, nobody joins or leaves."""

    def __init__(
        self,
        store: Store,
        service: str,
        on_join: Callable[[Member], None],
        on_leave: Callable[[Member], None],
    ) -> None:
        self._store = store
        self._service = service
        self._on_join = on_join
        self._on_leave = on_leave
        self._known: dict[str, Member] = {}
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger()

    def start(self) -> None:
        """Look now, and then every quarter of a second."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        reached = True
        while True:
            try:
                self._compare(await self._store.members(self._service))
                reached = True
            except HeadwayError as error:
                if reached:
                    self._log.warning("members_unknown", error=error.message)
                reached = False
            await asyncio.sleep(WATCH_INTERVAL)

    def _compare(self, members: list[Member]) -> None:
        present = {member.member_id: member for member in members}
        for member_id, member in list(self._known.items()):
            now = present.get(member_id)
            if now is None or now.address != member.address:
                del self._known[member_id]
                self._on_leave(member)
        for member_id, member in present.items():
            if member_id not in self._known:
                self._known[member_id] = member
                self._on_join(member)
