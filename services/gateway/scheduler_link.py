"""The gateway's stream to the leading scheduler, reopened whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from headway.core.gateway.events import SchedulerConnected, SchedulerDisconnected
from headway.errors import Code, HeadwayError, invalid
from headway.messages import GatewayHello, ToGateway, ToScheduler, named_in
from headway.picture import ClusterPicture
from headway.request import Request
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks, essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.store import Leader, Store
from services.runtime.stream import Dialled, Outbox, redial

T = TypeVar("T")
Told = SchedulerConnected | SchedulerDisconnected | ToGateway

_CALL_TIMEOUT = 5.0
_UNREACHED = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
_LEADER_CHECK_INTERVAL = 0.1
_MOST_GATHERED_TOKENS = 200_000  # well below the 4 MiB of a message
_LEAST_SIZE = 10_000
"""Tokens as which a message counts at least: the leader handles what is gathered in one go, and
must not miss its lease over it."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
_STEADY = 1.0
"""Seconds of a stream after which the next one need not wait."""
_LONGEST_REST = 2.0
_MOST_QUEUED = 65_536
"""Messages that a leader may leave unread before the stream is opened again."""


class SchedulerLink:
    """A stream that follows the leader. Messages sent while it is closed are dropped."""

    def __init__(
        self,
        config: ServiceConfig,
        address: str,
        store: Store,
        post: Callable[[Told], None],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._post = post
        self._gateway_id = config.service_id
        self._task: asyncio.Task[NoReturn] | None = None
        self._opened_at: float | None = None
        self._explaining = asyncio.Lock()
        self._rest = 0.0
        self._log = get_logger()
        self._stream: Dialled[ToScheduler] = Dialled(
            config,
            ServiceRole.SCHEDULER,
            wire.dial_connect,
            lambda messages: wire.FROM_GATEWAY.pack_all(messages, now=now()),
            self._take,
            hello=wire.FROM_GATEWAY.pack(GatewayHello(config.service_id, address), now=now()),
            on_open=self._opened,
        )

    @property
    def connected(self) -> bool:
        """True if the stream to a leader is open."""
        return self._stream.is_open

    def start(self) -> None:
        """Start following the leader."""
        following = redial(self._attempt, shortest=_SHORTEST_PAUSE, longest=_LONGEST_PAUSE)
        self._task = essential(following, "scheduler link")

    async def stop(self) -> None:
        """Close the stream."""
        await end_tasks(self._task)

    def send(self, message: ToScheduler) -> None:
        """Queue one message; open a new stream to a leader that does not read."""
        if not self._stream.send(message):
            self._log.warning("scheduler_does_not_read")

    async def explain(self, request_id: str) -> list[str]:
        """Return the leader's decisions for a request, as JSON.

        Raise UNAVAILABLE if no leader can be reached. One is asked for at a time: the leader looks
        through all decisions, and requests go first.
        """
        asked = partial(wire.explain, request_id=request_id, within=_CALL_TIMEOUT)
        async with self._explaining:
            return await self._ask(asked)

    async def picture(self) -> ClusterPicture:
        """Return the cluster as its leader sees it; UNAVAILABLE if none can be reached."""
        return await self._ask(partial(wire.picture, within=_CALL_TIMEOUT))

    async def _ask(self, call: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
        channel = self._stream.channel
        if channel is None:
            raise _no_scheduler()
        try:
            return await call(channel)
        except HeadwayError as error:
            if error.code in _UNREACHED:
                raise _no_scheduler() from error
            raise

    async def _leader(self) -> Leader | None:
        try:
            return await self._store.leader()
        except HeadwayError as error:
            self._log.warning("leader_unknown", error=error.message)
            return None

    async def _attempt(self) -> None:
        """Keep one stream until it breaks or another leader comes."""
        leader = await self._leader()
        if leader is None:
            return
        outbox = Outbox[ToScheduler](_MOST_QUEUED, _MOST_GATHERED_TOKENS, _size, _lane)
        self._opened_at = None
        try:
            reason = await self._stream.once(leader.address, outbox, self._replaced(leader))
            self._log.warning("scheduler_lost", address=leader.address, reason=reason)
        finally:
            if self._opened_at is not None:
                self._post(SchedulerDisconnected())
        await self._pause(leader)

    async def _pause(self, leader: Leader) -> None:
        """Wait longer each time that a stream is opened and ends within a second.

        Every new stream submits all open requests again. Another leader ends the wait.
        """
        if self._opened_at is None:
            return
        if asyncio.get_running_loop().time() - self._opened_at >= _STEADY:
            self._rest = 0.0
            return
        self._rest = min(max(2 * self._rest, _LEADER_CHECK_INTERVAL), _LONGEST_REST)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rest):
                await self._replaced(leader)

    def _opened(self) -> None:
        self._opened_at = asyncio.get_running_loop().time()
        self._log.info("scheduler_connected")
        self._post(SchedulerConnected())

    def _take(self, packed: Any) -> None:
        for message in wire.TO_GATEWAY.unpack_all(packed):
            for key in named_in(message):
                if key.gateway_id != self._gateway_id:
                    limit = f"{self._gateway_id!r}, this gateway"
                    raise invalid("gateway_id", key.gateway_id, limit)
            self._post(message)

    async def _replaced(self, leader: Leader) -> None:
        """Return when the store names another leader."""
        current: Leader | None = leader
        while current is None or current.fencing_token == leader.fencing_token:
            await asyncio.sleep(_LEADER_CHECK_INTERVAL)
            current = await self._leader()
        self._log.info("leader_changed", address=current.address)


def _size(message: ToScheduler) -> int:
    return max(_LEAST_SIZE, message.num_tokens if isinstance(message, Request) else 0)


def _lane(message: ToScheduler) -> str | None:
    """Return whose turn a message waits for: a tenant's, or None, that of all cancels.

    A cancel may overtake its request, which is then not let in.
    """
    return message.standing.tenant if isinstance(message, Request) else None


def _no_scheduler() -> HeadwayError:
    message = "no scheduler could be reached; try again soon"
    return HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
