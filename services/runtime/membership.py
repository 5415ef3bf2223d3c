"""Membership: the lease of this process, and a watch over other services' members.

While the store is unavailable nobody joins or leaves, and all services keep what they know. The
store logs the outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from headway.errors import HeadwayError
from services.runtime.essential import end_tasks, essential
from services.runtime.failpoints import failpoint
from services.runtime.logs import get_logger
from services.runtime.store import MEMBER_TTL, Member, Store

WATCH_INTERVAL = 0.25
RENEW_INTERVAL = MEMBER_TTL / 3
ABSENCE_GRACE = 2 * RENEW_INTERVAL  # after data loss a store has all members again within one


NONCE_DIGEST = "nonce-digest"
"""The detail of a worker by which gateways know its process."""


def digest_of(nonce: str) -> str:
    """Return what the membership publishes of a nonce."""
    return sha256(nonce.encode()).hexdigest()


class MembershipLease:
    """The lease of a member, kept up across outages of the store."""

    def __init__(self, store: Store, member: Member) -> None:
        self._store = store
        self._member = member
        self._has_joined = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Join, and renew the lease three times in its lifetime."""
        self._task = essential(self._run(), "membership lease")

    async def change(self, role: str) -> None:
        """Publish a new role."""
        self._member = replace(self._member, role=role)
        with suppress(HeadwayError):  # the next renewal publishes it
            await self._store.join(self._member)

    async def stop(self) -> None:
        """Leave at once."""
        await end_tasks(self._task)
        with suppress(HeadwayError):  # without a store the lease ends by itself
            await self._store.leave(self._member)

    async def _run(self) -> None:
        while True:
            with suppress(HeadwayError):
                before = await self._store.join(self._member)
                failpoint("member.joined")
                self._compare(before)
            await asyncio.sleep(RENEW_INTERVAL)

    def _compare(self, before: Member | None) -> None:
        """Warn if another process has joined under this id; at first it may have been the last."""
        if self._has_joined and before is not None and before.address != self._member.address:
            get_logger().error(
                "service_id_taken",
                address=before.address,
                way_out="two processes have this id: give one of them another --service-id",
            )
        self._has_joined = True


class MembershipWatch:
    """A poll of the members of one service.

    A member that changes its address leaves and joins at once. A missing member leaves only after
    ``ABSENCE_GRACE``. Its connections break sooner, and a store that lost its data must not look
    like a cluster that lost its members.
    """

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
        self._missed_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Poll now, then every quarter of a second."""
        self._task = essential(self._run(), f"watch of {self._service} members")

    async def stop(self) -> None:
        """Stop polling."""
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            try:
                self._compare(await self._store.members(self._service))
            except HeadwayError:
                self._missed_at.clear()  # unseen during the outage, which does not count as absent
            await asyncio.sleep(WATCH_INTERVAL)

    def _compare(self, members: list[Member]) -> None:
        now = asyncio.get_running_loop().time()
        present = {member.member_id: member for member in members}
        for member_id, member in list(self._known.items()):
            newest = present.get(member_id)
            if newest is not None:
                self._missed_at.pop(member_id, None)
                if newest.address == member.address:
                    continue
            elif now - self._missed_at.setdefault(member_id, now) < ABSENCE_GRACE:
                continue
            self._missed_at.pop(member_id, None)
            del self._known[member_id]
            self._tell(self._on_leave, member)
        for member_id, member in present.items():
            if member_id not in self._known:
                self._known[member_id] = member
                self._tell(self._on_join, member)

    def _tell(self, listener: Callable[[Member], None], member: Member) -> None:
        try:
            listener(member)
        except Exception as error:  # one listener's error must not end the watch
            get_logger().error("unexpected_error", member_id=member.member_id, exc_info=error)
