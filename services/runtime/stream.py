"""Streams between services: dialled or served, with bounded queues both ways.

This file dials, greets, pauses between attempts, gathers queued messages, and cuts off peers that
do not read. A link decides what is said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import grpc

from headway.errors import Code, HeadwayError
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.essential import end_tasks
from services.runtime.identity.roles import ServiceRole
from services.runtime.identity.tls_faults import peer_fault
from services.runtime.logs import get_logger

S = TypeVar("S")

UNBOUNDED = 1 << 62
_LAST_WORDS = 0.5
"""Seconds that a peer has to close the stream once everything has been sent."""


class Outbox(Generic[S]):
    """Messages that wait to be sent; one too many ends it with RESOURCE_EXHAUSTED.

    ``most`` bounds the weight of messages that are gathered into one. ``lane`` says in which lane
    a message waits: the lanes take turns, and order holds within each.
    """

    def __init__(
        self,
        max_queued: int = UNBOUNDED,
        most: int = 1,
        weigh: Callable[[S], int] = lambda _: 1,
        lane: Callable[[S], Hashable] = lambda _: None,
    ) -> None:
        self._max_queued = max_queued
        self._most = most
        self._weigh = weigh
        self._lane = lane
        self._lanes: dict[Hashable, deque[S]] = {}
        """Lanes that have messages, the one whose turn is next first."""
        self._num_queued = 0
        self._changed = asyncio.Event()
        self._overflowed = asyncio.Event()
        self._error: HeadwayError | None = None
        self.has_ended = False

    def put(self, message: S) -> bool:
        """Queue a message; False if the peer is cut off because it does not read."""
        if self.has_ended:
            return True
        if self._num_queued >= self._max_queued:
            text = f"{self._max_queued} messages are unread: read, or open a new stream"
            self._lanes.clear()
            self._num_queued = 0
            self.end(HeadwayError(Code.RESOURCE_EXHAUSTED, text))
            self._overflowed.set()
            return False
        self._lanes.setdefault(self._lane(message), deque()).append(message)
        self._num_queued += 1
        self._changed.set()
        return True

    def end(self, error: HeadwayError | None = None) -> None:
        """Accept no more messages; send the queued ones, then ``error`` if given."""
        if not self.has_ended:
            self.has_ended, self._error = True, error
            self._changed.set()

    async def gathered(self) -> list[S]:
        """Return the next messages, at least one; none at the end. Raise the error it ended with.

        Sending one message costs as much as sending a dozen together.
        """
        while not self._lanes:
            if self._error is not None:
                raise self._error
            if self.has_ended:
                return []
            self._changed.clear()
            await self._changed.wait()
        gathered: list[S] = []
        weight = 0
        while self._lanes and (weight < self._most or not gathered):
            gathered.append(self._next())
            weight += self._weigh(gathered[-1])
        return gathered

    def _next(self) -> S:
        """Take the next message, whose lane then goes behind the others."""
        lane, queue = next(iter(self._lanes.items()))
        self._num_queued -= 1
        if len(self._lanes) > 1 or len(queue) == 1:
            del self._lanes[lane]
            if len(queue) > 1:
                self._lanes[lane] = queue
        return queue.popleft()

    async def overflow(self) -> NoReturn:
        """Raise when the peer is cut off, even while a message to it is being written."""
        await self._overflowed.wait()
        assert self._error is not None
        raise self._error


class Call(Protocol):
    """A gRPC call with a stream each way."""

    async def write(self, request: Any, /) -> None:
        """Send one message."""

    async def done_writing(self) -> None:
        """Close this side of the stream."""

    def cancel(self) -> bool:
        """Cancel the call."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Read messages until the peer hangs up."""


class Dialled(Generic[S]):
    """A stream that this side opens.

    ``dial`` opens it on a channel to a server of that ``role``. ``pack`` makes one protobuf
    message of the gathered ones. ``on_message`` takes the peer's protobuf messages; a
    ``HeadwayError`` from it ends the stream. Messages sent while no stream is open are dropped.
    """

    def __init__(
        self,
        config: ServiceConfig,
        role: ServiceRole,
        dial: Callable[[grpc.aio.Channel], Call],
        pack: Callable[[list[S]], Any],
        on_message: Callable[[Any], None],
        *,
        hello: Any = None,
        on_open: Callable[[], None] = lambda: None,
        connect_timeout: float = 2.0,
    ) -> None:
        self._config = config
        self._role = role
        self._dial = dial
        self._pack = pack
        self._on_message = on_message
        self._hello = hello
        self._on_open = on_open
        self._connect_timeout = connect_timeout
        self._outbox: Outbox[S] | None = None
        self.channel: grpc.aio.Channel | None = None

    @property
    def is_open(self) -> bool:
        """True once the peer has been greeted, while the stream is open."""
        return self._outbox is not None

    def send(self, message: S) -> bool:
        """Queue a message; False if the peer is cut off because it does not read."""
        return self._outbox is None or self._outbox.put(message)

    async def once(
        self, address: str, outbox: Outbox[S], until: Awaitable[None] | None = None
    ) -> str:
        """Open one stream and return why it ended: it broke, or ``until`` returned."""
        others = () if until is None else (until,)
        try:
            opened = open_channel(address, self._config, self._role)
        except HeadwayError as error:  # our own certificate cannot be read, for example
            return f"it cannot be dialled from here: {error.message}"
        try:
            async with opened as channel:
                await _first_of(self._talk(channel, outbox), outbox.overflow(), *others)
        except TimeoutError:
            fault = await peer_fault(address, self._config, self._role)
            return f"it cannot be reached{fault and ': ' + fault}"
        except (asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            return f"its stream broke: {error}"
        except grpc.aio.AioRpcError as error:
            return f"its stream broke: {error.code().name}: {error.details()}"
        except HeadwayError as error:
            if error.code is Code.RESOURCE_EXHAUSTED:
                return f"it does not read: {error.message}"
            return f"it sent an invalid message: {error.message}"
        except Exception as error:  # a link outlives whatever a handler raises
            get_logger().exception("stream_handler_failed", address=address)
            return f"its message could not be handled: {error!r}"
        finally:
            self._outbox = self.channel = None
        return "it closed its stream"

    async def _talk(self, channel: grpc.aio.Channel, outbox: Outbox[S]) -> None:
        async with asyncio.timeout(self._connect_timeout):
            await channel.channel_ready()
        call = self._dial(channel)
        try:
            if self._hello is not None:
                await call.write(self._hello)
            self._outbox, self.channel = outbox, channel
            self._on_open()
            await _first_of(self._write(call, outbox), self._read(call))
        finally:
            call.cancel()

    async def _write(self, call: Call, outbox: Outbox[S]) -> None:
        while messages := await outbox.gathered():
            await call.write(self._pack(messages))
        await call.done_writing()
        await asyncio.sleep(_LAST_WORDS)

    async def _read(self, call: Call) -> None:
        async for packed in call:
            self._on_message(packed)


async def redial(
    attempt: Callable[[], Awaitable[None]], *, shortest: float, longest: float
) -> NoReturn:
    """Attempt for ever, doubling the pause (s) while attempts are shorter than ``longest``."""
    clock, pause = asyncio.get_running_loop().time, shortest
    while True:
        began_at = clock()
        await attempt()
        pause = shortest if clock() - began_at >= longest else min(2 * pause, longest)
        await asyncio.sleep(pause)


class Served(Generic[S]):
    """A stream that the peer has opened; ``on_end`` is called once, however it ends."""

    def __init__(
        self, max_queued: int, *, most: int = 1, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._outbox: Outbox[S] = Outbox(max_queued, most)
        self._on_end: Callable[[], None] | None = on_end
        self._writer: asyncio.Task[Any] | None = None
        """The call's task while it writes a message."""

    def send(self, message: S) -> bool:
        """Queue a message; False if the peer is cut off because it does not read."""
        is_read = self._outbox.put(message)
        if not is_read:
            self.end()
            if self._writer is not None:  # its write may never end
                self._writer.cancel()
        return is_read

    def end(self, error: HeadwayError | None = None) -> None:
        """End with ``error``, or without one; a repeated call does nothing."""
        self._outbox.end(error)
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    async def serve(
        self,
        messages: AsyncIterator[Any],
        on_message: Callable[[Any], None],
        *,
        farewell: HeadwayError | None = None,
    ) -> AsyncIterator[list[S]]:
        """Yield messages to send and handle received ones, until either side ends the stream.

        ``on_message`` takes protobuf messages; a ``HeadwayError`` from it ends the stream. If the
        peer closes it, ``farewell`` is its error.
        """
        reader = asyncio.create_task(self._read(messages, on_message, farewell))
        try:
            while gathered := await self._outbox.gathered():
                self._writer = asyncio.current_task()
                yield gathered
                self._writer = None
        finally:
            reader.cancel()
            self.end()

    async def _read(
        self,
        messages: AsyncIterator[Any],
        on_message: Callable[[Any], None],
        farewell: HeadwayError | None,
    ) -> None:
        end = farewell
        try:
            async for message in messages:
                if self._outbox.has_ended:
                    return  # replaced: its successor already has the state
                on_message(message)
        except HeadwayError as error:
            end = error
        except grpc.aio.BaseError:
            pass  # the call or its server has ended, with messages that nobody will read
        except Exception:  # the peer opens a new stream
            get_logger().exception("stream_handler_failed")
            end = HeadwayError(Code.INTERNAL, "a message could not be handled: see this side's log")
        finally:
            self.end(end)


async def _first_of(*awaitables: Awaitable[None]) -> None:
    """Return, or raise, as soon as one does; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:  # in their order, where several have ended at once
            if task.done():
                task.result()
    finally:
        await end_tasks(*tasks)
