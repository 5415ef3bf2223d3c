"""The gateway's one stream to the scheduler leader, opened again whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from headway.core.gateway.events import SchedulerConnected, SchedulerDisconnected
from headway.errors import Code, HeadwayError
from headway.messages import CancelStream, GatewayHello, ToGateway
from headway.request import Request
from protos import scheduler_pb2, scheduler_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.logs import get_logger
from services.runtime.store import Leader, Store

_ConnectCall = grpc.aio.StreamStreamCall[
    scheduler_pb2.GatewayMessage, scheduler_pb2.SchedulerMessage
]
Told = SchedulerConnected | SchedulerDisconnected | ToGateway

_CONNECT_TIMEOUT = 2.0
_CALL_TIMEOUT = 5.0
_UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LEADER_CHECK_INTERVAL = 0.1
_MOST_GATHERED_TOKENS = 200_000  # well below the 4 MiB of a message
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25


class SchedulerLink:
    """Follows the leader. While there is none, what is sent is dropped: the core knows."""

    def __init__(
        self, config: ServiceConfig, address: str, store: Store, post: Callable[[Told], None]
    ) -> None:
        self._config = config
        self._hello = GatewayHello(config.service_id, address)
        self._store = store
        self._post = post
        self._queue: asyncio.Queue[Request | CancelStream] | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._log = get_logger()

    @property
    def connected(self) -> bool:
        """Whether a leader listens."""
        return self._queue is not None

    def start(self) -> None:
        """Follow the leader from now on."""
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, message: Request | CancelStream) -> None:
        """Queue one message; the core bounds how many requests are open."""
        if self._queue is not None:
            self._queue.put_nowait(message)

    async def explain(self, request_id: str) -> list[str]:
        """What the leader has decided for a request, as JSON; HeadwayError where none is there."""
        if self._channel is None:
            raise _no_scheduler()
        stub = scheduler_pb2_grpc.SchedulerStub(self._channel)
        asked = scheduler_pb2.ExplainRequest(request_id=request_id)
        try:
            reply = await stub.Explain(asked, timeout=_CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNREACHED:
                raise _no_scheduler() from error
            raise wire.error_of(error) from error
        return list(reply.decisions)

    async def _follow(self) -> None:
        pause = _SHORTEST_PAUSE
        while True:
            leader = await self._leader()
            if leader is not None and await self._serve(leader):
                pause = _SHORTEST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _leader(self) -> Leader | None:
        try:
            return await self._store.leader()
        except HeadwayError as error:
            self._log.warning("leader_unknown", error=error.message)
            return None

    async def _serve(self, leader: Leader) -> bool:
        """One stream, until it breaks or another leader comes; whether it ever stood."""
        stood = False
        try:
            async with open_channel(leader.address, self._config) as channel:
                if not await self._reach(channel, leader):
                    return False
                call = scheduler_pb2_grpc.SchedulerStub(channel).Connect()
                await call.write(wire.FROM_GATEWAY.pack(self._hello))
                stood, self._channel = True, channel
                await self._converse(call, leader)
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._log.warning("scheduler_lost", address=leader.address, error=_brief(error))
        except HeadwayError as error:
            self._log.error("scheduler_talks_nonsense", error=error.message)
        finally:
            self._channel = None
        return stood

    async def _reach(self, channel: grpc.aio.Channel, leader: Leader) -> bool:
        """Whether the leader can be reached; False at once where the store names another one."""
        ready = asyncio.ensure_future(channel.channel_ready())
        changed = asyncio.create_task(self._watch(leader))
        tasks = (ready, changed)
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=_CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TimeoutError
            return ready in done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, call: _ConnectCall, leader: Leader) -> None:
        queue: asyncio.Queue[Request | CancelStream] = asyncio.Queue()
        tasks = {
            asyncio.create_task(self._write(call, queue)),
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._watch(leader)),
        }
        self._queue = queue
        self._log.info("scheduler_connected", address=leader.address)
        self._post(SchedulerConnected())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._queue = None
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._post(SchedulerDisconnected())

    async def _write(
        self, call: _ConnectCall, queue: asyncio.Queue[Request | CancelStream]
    ) -> None:
        while True:
            gathered = await _gathered(queue)
            await call.write(wire.FROM_GATEWAY.pack_all(gathered))

    async def _read(self, call: _ConnectCall) -> None:
        async for packed in call:
            for told in wire.TO_GATEWAY.unpack_all(packed):
                self._post(told)

    async def _watch(self, leader: Leader) -> None:
        """Ends when the store names another leader."""
        current: Leader | None = leader
        while current is None or current.fencing_token == leader.fencing_token:
            await asyncio.sleep(_LEADER_CHECK_INTERVAL)
            current = await self._leader()
        self._log.info("leader_changed", address=current.address)


async def _gathered(queue: asyncio.Queue[Request | CancelStream]) -> list[Request | CancelStream]:
    """The next message and those behind it: one costs as much to send as a dozen together."""
    gathered = [await queue.get()]
    num_tokens = _size(gathered[0])
    while not queue.empty() and num_tokens < _MOST_GATHERED_TOKENS:
        gathered.append(queue.get_nowait())
        num_tokens += _size(gathered[-1])
    return gathered


def _size(message: Request | CancelStream) -> int:
    return message.num_tokens if isinstance(message, Request) else 0


def _brief(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)


def _no_scheduler() -> HeadwayError:
    message = "no scheduler could be reached; try again soon"
    return HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
