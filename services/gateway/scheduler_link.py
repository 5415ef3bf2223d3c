"""The gateway's stream to the leading scheduler, reopened whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from headway.core.gateway.events import SchedulerConnected, SchedulerDisconnected
from headway.errors import Code, HeadwayError, invalid
from headway.messages import CancelStream, GatewayHello, Lost, ToGateway
from headway.request import Request
from services.runtime import wire
from services.runtime.config import ServiceConfig
from services.runtime.essential import essential
from services.runtime.identity.roles import ServiceRole
from services.runtime.logs import get_logger
from services.runtime.store import Leader, Store
from services.runtime.stream import Dialled, Outbox, redial

Told = SchedulerConnected | SchedulerDisconnected | ToGateway

_CALL_TIMEOUT = 5.0
_UNREACHED = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
_LEADER_CHECK_INTERVAL = 0.1
_MOST_GATHERED_TOKENS = 200_000  # well below the 4 MiB of a message
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25


class SchedulerLink:
    """A stream that follows the leader. Messages sent while it is closed are dropped."""

    def __init__(
        self, config: ServiceConfig, address: str, store: Store, post: Callable[[Told], None]
    ) -> None:
        self._store = store
        self._post = post
        self._gateway_id = config.service_id
        self._task: asyncio.Task[NoReturn] | None = None
        self._was_open = False
        self._log = get_logger()
        self._stream: Dialled[Request | CancelStream] = Dialled(
            config,
            ServiceRole.SCHEDULER,
            wire.dial_connect,
            wire.FROM_GATEWAY.pack_all,
            self._take,
            hello=wire.FROM_GATEWAY.pack(GatewayHello(config.service_id, address)),
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, message: Request | CancelStream) -> None:
        """Queue one message; the core bounds how many requests are open."""
        self._stream.send(message)

    async def explain(self, request_id: str) -> list[str]:
        """Return the leader's decisions for a request, as JSON.

        Raise UNAVAILABLE if no leader can be reached.
        """
        channel = self._stream.channel
        if channel is None:
            raise _no_scheduler()
        try:
            return await wire.explain(channel, request_id, within=_CALL_TIMEOUT)
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
        outbox: Outbox[Request | CancelStream] = Outbox(most=_MOST_GATHERED_TOKENS, weigh=_size)
        self._was_open = False
        try:
            reason = await self._stream.once(leader.address, outbox, self._replaced(leader))
            self._log.warning("scheduler_lost", address=leader.address, reason=reason)
        finally:
            if self._was_open:
                self._post(SchedulerDisconnected())

    def _opened(self) -> None:
        self._was_open = True
        self._log.info("scheduler_connected")
        self._post(SchedulerConnected())

    def _take(self, packed: Any) -> None:
        for told in wire.TO_GATEWAY.unpack_all(packed):
            for key in told.keys if isinstance(told, Lost) else (told.key,):
                if key.gateway_id != self._gateway_id:
                    limit = f"{self._gateway_id!r}, this gateway"
                    raise invalid("gateway_id", key.gateway_id, limit)
            self._post(told)

    async def _replaced(self, leader: Leader) -> None:
        """Return when the store names another leader."""
        current: Leader | None = leader
        while current is None or current.fencing_token == leader.fencing_token:
            await asyncio.sleep(_LEADER_CHECK_INTERVAL)
            current = await self._leader()
        self._log.info("leader_changed", address=current.address)


def _size(message: Request | CancelStream) -> int:
    return message.num_tokens if isinstance(message, Request) else 0


def _no_scheduler() -> HeadwayError:
    message = "no scheduler could be reached; try again soon"
    return HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
