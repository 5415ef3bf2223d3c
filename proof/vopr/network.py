"""The network between processes: connections, the messages on them, and what breaks both.

Messages of one stream arrive in order, each after its own delay; streams overtake each other. A
sender waits where its peer does not read. What is on its way when a connection breaks is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from proof.vopr.loop import ProcessLife, VirtualLoop

KEEPALIVE = 4.0
"""Seconds after which a peer that does not answer is given up (``services.runtime.channel``)."""
_BASE_DELAY, _JITTER = 2e-4, 2e-3
_WINDOWS = (2**9, 2**13, 2**16)
"""Bytes of a stream that may be on their way or unread; HTTP/2 begins with 64 KiB."""


class Party(Protocol):
    """One side of a call."""

    def broke(self, reason: str) -> None:
        """Learn that the connection is no more."""


@dataclass(slots=True)
class DirectionFaults:
    """The faults of one direction between two processes."""

    blocked: int = 0
    """How many partitions hold it; nothing passes while there is one."""
    extra_delay: float = 0.0
    jitter: float = 0.0
    unanswered: float = 0.0
    """The probability that a connection breaks as the answer to a call leaves."""


@dataclass(slots=True)
class MemoryNetwork:
    """All links, by the names of processes, and all connections that are open."""

    loop: VirtualLoop
    rng: Random
    hit: Callable[[str], None]
    happened: Callable[[str], None]
    links: dict[tuple[str, str], DirectionFaults] = field(default_factory=dict)
    connections: dict[MemoryConnection, None] = field(default_factory=dict)
    takes: dict[str, float] = field(default_factory=dict)
    """Seconds that a caller's messages take for their size, by method."""
    own: dict[str, Random] = field(default_factory=dict)
    """Dice of single processes, by name: what the others draw does not depend on them."""

    def dice(self, *names: str) -> Random:
        """Return the dice of what happens between processes."""
        for name in names:
            if name in self.own:
                return self.own[name]
        return self.rng

    def link(self, source: str, target: str) -> DirectionFaults:
        """Return the faults of one direction, to change them."""
        return self.links.setdefault((source, target), DirectionFaults())

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether nothing passes in this direction."""
        link = self.links.get((source, target))
        return link is not None and link.blocked > 0

    def delay(self, source: str, target: str) -> float:
        """Return the seconds that a message takes."""
        rng = self.dice(source, target)
        delay = _BASE_DELAY + rng.random() * _JITTER
        link = self.links.get((source, target))
        if link is not None and (link.extra_delay or link.jitter):
            self.hit("a message is delayed")
            delay += link.extra_delay + rng.random() * link.jitter
        return delay

    def block(self, source: str, target: str) -> None:
        """Let nothing pass in this direction; connections break when keepalive notices."""
        self.link(source, target).blocked += 1
        self.loop.later(KEEPALIVE, lambda: self._notice(source, target))

    def unblock(self, source: str, target: str) -> None:
        """Let everything pass again, what was held first."""
        self.link(source, target).blocked -= 1
        for connection in self._between(source, target):
            connection.flush()

    def _notice(self, source: str, target: str) -> None:
        if self.is_blocked(source, target):
            for connection in self._between(source, target):
                self.hit("keepalive gives a peer up")
                connection.fail("keepalive: the peer does not answer")

    def cut(self, one: str, other: str, *, half_open: bool = False) -> None:
        """Break every connection between two processes; with ``half_open`` one side learns late."""
        for connection in self._between(one, other):
            self.hit("a stream is cut")
            connection.fail("connection reset", half_open=half_open)

    def _between(self, one: str, other: str) -> list[MemoryConnection]:
        pair = {one, other}
        return [each for each in self.connections if {each.caller.name, each.callee.name} == pair]

    def of(self, life: ProcessLife) -> list[MemoryConnection]:
        """Return the connections of a process."""
        return [each for each in self.connections if life in (each.caller, each.callee)]

    def gone(self, life: ProcessLife, *, silent: bool = False) -> None:
        """Break the connections of a process that has ended; a ``silent`` end needs keepalive."""
        for connection in self.of(life):
            connection.lose_side(life, KEEPALIVE * silent + connection.rng.random() * 0.005)

    def hangs(self, life: ProcessLife) -> None:
        """Give up the connections of a process that has stood still for longer than keepalive."""
        for connection in self.of(life):
            self.hit("keepalive gives a peer up")
            connection.fail("keepalive: the peer does not answer")


class MemoryConnection:
    """One connection of a channel to a server, and the calls on it."""

    def __init__(self, wires: MemoryNetwork, caller: ProcessLife, callee: ProcessLife) -> None:
        self.wires = wires
        self.caller = caller
        self.callee = callee
        self.rng = wires.dice(caller.name, callee.name)
        self.is_open = True
        self._sides: dict[tuple[Party, ProcessLife], None] = {}
        self._pipes: dict[Pipe, None] = {}
        wires.connections[self] = None

    def join(self, party: Party, life: ProcessLife) -> None:
        """Let a side of a call know when the connection breaks."""
        self._sides[party, life] = None

    def leave(self, party: Party, life: ProcessLife) -> None:
        """Forget a side: its call is over."""
        self._sides.pop((party, life), None)

    def pipe(self, source: ProcessLife, target: ProcessLife, takes: float = 0.0) -> Pipe:
        """Return a new direction of a call; each message ``takes`` seconds more."""
        pipe = Pipe(self, source, target, takes)
        self._pipes[pipe] = None
        return pipe

    def forget(self, pipes: Iterable[Pipe]) -> None:
        """Forget the directions of a call that is over."""
        for pipe in pipes:
            self._pipes.pop(pipe, None)

    def flush(self) -> None:
        """Deliver what a blocked link has held."""
        for pipe in list(self._pipes):
            pipe.flush()

    def fail(self, reason: str, *, half_open: bool = False) -> None:
        """Break it: both sides learn it, each in its own time."""
        rng = self.rng
        late = self.caller if rng.random() < 0.5 else self.callee
        for life in (self.caller, self.callee):
            delay = rng.random() * 0.02
            if half_open and life is late:
                self.wires.hit("a stream is half open")
                delay += rng.random() * KEEPALIVE
            self._tell(life, delay, reason)
        self._end()

    def lose_side(self, ended: ProcessLife, delay: float) -> None:
        """Break it because one process has ended; the other learns it after ``delay`` seconds."""
        other = self.callee if ended is self.caller else self.caller
        self._tell(other, delay, "connection reset by peer")
        self._end()

    def close(self) -> None:
        """Close it in order: whoever still calls on it learns it at once."""
        if self.is_open:
            self.fail("the channel was closed")

    def _end(self) -> None:
        self.is_open = False
        self.wires.connections.pop(self, None)
        for pipe in self._pipes:
            pipe.lose()
        self._pipes.clear()

    def _tell(self, life: ProcessLife, delay: float, reason: str) -> None:
        sides = [party for party, owner in self._sides if owner is life]

        def tell() -> None:
            for party in sides:
                party.broke(reason)

        self.wires.loop.later(delay, tell)


class CallEnd:
    """The last thing on a pipe: how the call ended; ``is_cut``: at once, before what is unread."""

    def __init__(self, value: Any, *, is_cut: bool = False) -> None:
        self.value = value
        self.is_cut = is_cut


class Pipe:
    """One direction of a call: messages in order, and a sender that waits for its reader."""

    def __init__(
        self, connection: MemoryConnection, source: ProcessLife, target: ProcessLife, takes: float
    ) -> None:
        self._connection = connection
        self._wires = connection.wires
        self._takes = takes
        self._source = source
        self._target = target
        self._link = connection.wires.link(source.name, target.name)
        self._window = connection.rng.choice(_WINDOWS)
        self._num_unread = 0
        self._on_way: deque[bytes | CallEnd] = deque()
        self._arrived: deque[bytes] = deque()
        self._end: CallEnd | None = None
        self._is_connected = True
        self._last_at = 0.0
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self.on_cut: Callable[[], None] | None = None
        """Called when the call is ended from afar, whoever reads: also after the last message."""

    # --- the sender -------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send a message; wait while too much is unread."""
        while self._num_unread >= self._window and self._is_connected:
            waits = self._wires.loop.create_future()
            self._writers.append(waits)
            self._wires.hit("a sender waits for its reader")
            await waits
        self._num_unread += len(data) + 5
        self._post(data)

    def end(self, value: Any, *, is_cut: bool = False) -> None:
        """Send the end."""
        self._post(CallEnd(value, is_cut=is_cut))

    def _post(self, message: bytes | CallEnd) -> None:
        wires = self._wires
        is_answer = self._source is self._connection.callee and isinstance(message, CallEnd)
        unanswered, rng = self._link.unanswered, self._connection.rng
        if is_answer and self._is_connected and rng.random() < unanswered:
            wires.hit("an answer is lost")
            self._connection.fail("connection reset")
        if not self._is_connected:
            return
        delay = self._takes + wires.delay(self._source.name, self._target.name)
        self._last_at = max(self._last_at, wires.loop.time() + delay)
        self._on_way.append(message)
        wires.loop.at(self._last_at, self._arrive)

    # --- the wire ---------------------------------------------------------------------

    def _arrive(self) -> None:
        if not self._on_way or self._link.blocked:
            return
        message = self._on_way.popleft()
        self._wires.happened(f"{self._source.name} {self._target.name}")
        if isinstance(message, CallEnd):
            self.finish(message)
        elif self._end is None:
            self._arrived.append(message)
            self._wake()

    def flush(self) -> None:
        """Deliver what a blocked link has held."""
        for _ in range(len(self._on_way)):
            self._arrive()

    def lose(self) -> None:
        """Lose everything on its way, and all that follows."""
        self._is_connected = False
        self._on_way.clear()
        self._release()

    def finish(self, end: CallEnd) -> None:
        """Let the reader learn the end: after what has arrived, or at once."""
        before, self._end = self._end, self._end or end
        if before is None or (self.on_cut is not None and end.is_cut and not before.is_cut):
            self._end = end
            if end.is_cut:
                self._arrived.clear()
                if self.on_cut is not None:
                    self.on_cut()
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _release(self) -> None:
        while self._writers:
            waits = self._writers.popleft()
            if not waits.done():
                waits.set_result(None)

    # --- the reader -------------------------------------------------------------------

    async def read(self) -> bytes | CallEnd:
        """Return the next message, or how the call has ended."""
        while not self._arrived:
            if self._end is not None:
                return self._end
            self._reader = self._wires.loop.create_future()
            await self._reader
        data = self._arrived.popleft()
        self._num_unread -= len(data) + 5
        if self._num_unread < self._window:
            self._release()
        return data
