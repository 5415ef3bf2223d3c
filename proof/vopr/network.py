"""The network in virtual time: streams in order, each with its own delays, and what breaks them.

A message is the bytes of its protobuf message. Two streams between the same processes overtake each
other; messages of one stream never do. What is on its way when a stream breaks is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headway.sim.kernel import Kernel
from proof.vopr.process import SimulatedProcess

KEEPALIVE = 4.0
"""Seconds after which a peer that does not answer is given up (``services.runtime.channel``)."""
CONNECT_TIMEOUT = 2.0
_RECONNECT_PAUSE = 0.25
_BASE_DELAY, _JITTER = 2e-4, 2e-3

Packed = tuple[Any, bytes]


def packed(message: Any) -> Packed:
    """Return the bytes of a protobuf message, with its type."""
    return type(message), message.SerializeToString()


def parsed(message: Packed) -> Any:
    """Return the protobuf message of such bytes."""
    kind, data = message
    return kind.FromString(data)


class End:
    """One side of a stream.

    ``on_message`` gets each message, and ``on_break`` once the reason why the stream has ended,
    unless this side has ended it.
    """

    def __init__(self, network: SimulatedNetwork, process: SimulatedProcess) -> None:
        self.process = process
        self.on_message: Callable[[Packed], None] = lambda _: None
        self.on_break: Callable[[str], None] = lambda _: None
        self.is_open = True  # as far as this side knows
        self.is_connected = True
        self.peer: End
        self._network = network
        self._sent: deque[Packed | str] = deque()  # on its way to the peer; a text is a farewell
        self._last_at = 0.0

    def send(self, message: Packed, *, repeatable: bool = False, takes: float = 0.0) -> None:
        """Send a message; a fault may double one whose repeat the receiver has to stand.

        ``takes``: seconds beyond the link's delay, for its size.
        """
        if not self.is_open:
            return
        self._post(message, takes)
        if repeatable and self._network.doubles(self):
            self._post(message)

    def close(self, reason: str) -> None:
        """End the stream: the peer learns the reason after everything sent before."""
        if self.is_open:
            self.is_open = False
            self._post(reason)

    def broken(self, reason: str) -> None:
        """Learn that the stream is no more."""
        if self.is_open:
            self.is_open = False
            self.on_break(reason)

    def _post(self, message: Packed | str, takes: float = 0.0) -> None:
        if not self.is_connected:
            return
        kernel = self._network.kernel
        delay = takes + self._network.delay(self.process.name, self.peer.process.name)
        self._last_at = max(self._last_at, kernel.now + delay)
        self._sent.append(message)
        kernel.at(self._last_at, self.pump)

    def pump(self) -> None:
        """Deliver the next message, unless the link is blocked: then ``unblock`` pumps again."""
        if not self._sent or self._network.is_blocked(self.process.name, self.peer.process.name):
            return
        message = self._sent.popleft()
        peer = self.peer
        if not isinstance(message, str):
            if peer.is_open:
                peer.process.run(lambda: peer.on_message(message) if peer.is_open else None)
            return
        self._network.forget(self)
        peer.process.run(lambda: peer.broken(message))

    def flush(self) -> None:
        """Deliver what a blocked link has held."""
        for _ in range(len(self._sent)):
            self.pump()

    def lose(self) -> None:
        """Lose everything on its way, and all that follows."""
        self.is_connected = False
        self._sent.clear()


@dataclass(slots=True)
class LinkFaults:
    """The faults of one direction between two processes."""

    blocked: int = 0
    """How many partitions hold it; nothing passes while there is one."""
    extra_delay: float = 0.0
    jitter: float = 0.0
    doubling: float = 0.0
    """The probability that a message which may be repeated is."""


@dataclass(slots=True)
class SimulatedNetwork:
    """All links by the names of their processes, and all open streams."""

    kernel: Kernel
    rng: Random
    hit: Callable[[str], None]
    listeners: dict[tuple[str, str], tuple[SimulatedProcess, Callable[[End], None]]] = field(
        default_factory=dict
    )
    """By address and call: the process that listens, and what takes a new stream."""
    links: dict[tuple[str, str], LinkFaults] = field(default_factory=dict)
    _streams: dict[End, None] = field(default_factory=dict)  # by the caller's end

    # --- faults -----------------------------------------------------------------------

    def link(self, source: str, target: str) -> LinkFaults:
        """Return the faults of one direction, to change them."""
        return self.links.setdefault((source, target), LinkFaults())

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether nothing passes in this direction."""
        link = self.links.get((source, target))
        return link is not None and link.blocked > 0

    def delay(self, source: str, target: str) -> float:
        """Return the seconds that a message takes."""
        delay = _BASE_DELAY + self.rng.random() * _JITTER
        link = self.links.get((source, target))
        if link is not None and (link.extra_delay or link.jitter):
            self.hit("a message is delayed")
            delay += link.extra_delay + self.rng.random() * link.jitter
        return delay

    def doubles(self, end: End) -> bool:
        """Return whether a message is sent twice."""
        link = self.links.get((end.process.name, end.peer.process.name))
        if link is None or self.rng.random() >= link.doubling:
            return False
        self.hit("a message is doubled")
        return True

    def block(self, source: str, target: str) -> None:
        """Let nothing pass in this direction; streams break when keepalive notices."""
        self.link(source, target).blocked += 1
        self.kernel.after(KEEPALIVE, lambda: self._notice(source, target))

    def unblock(self, source: str, target: str) -> None:
        """Let everything pass again, what was held first."""
        self.link(source, target).blocked -= 1
        for end in self._between(source, target):
            for side in (end, end.peer):
                side.flush()

    def _notice(self, source: str, target: str) -> None:
        if self.is_blocked(source, target):
            for end in self._between(source, target):
                self.hit("keepalive gives a peer up")
                self.break_stream(end, "keepalive: the peer does not answer")

    def cut(self, one: str, other: str, *, half_open: bool = False) -> None:
        """Break every stream between two processes; with ``half_open`` one side learns late."""
        for end in self._between(one, other):
            self.hit("a stream is cut")
            self.break_stream(end, "connection reset", half_open=half_open)

    def _between(self, one: str, other: str) -> list[End]:
        pair = {one, other}
        return [e for e in self._streams if {e.process.name, e.peer.process.name} == pair]

    def break_stream(self, end: End, reason: str, *, half_open: bool = False) -> None:
        """Lose what is on its way; both sides learn it, each in its own time."""
        self.forget(end)
        late = end if self.rng.random() < 0.5 else end.peer
        for side in (end, end.peer):
            side.lose()
            delay = self.rng.random() * 0.02
            if half_open and side is late:
                self.hit("a stream is half open")
                delay += self.rng.random() * KEEPALIVE
            self._tell(side, delay, reason)

    def _tell(self, side: End, delay: float, reason: str) -> None:
        self.kernel.after(delay, lambda: side.process.run(lambda: side.broken(reason)))

    def forget(self, end: End) -> None:
        """Count a stream as over."""
        self._streams.pop(end, None)
        self._streams.pop(end.peer, None)

    # --- processes --------------------------------------------------------------------

    def listen(self, process: SimulatedProcess, call: str, take: Callable[[End], None]) -> None:
        """Accept streams of one call at the process's address."""
        self.listeners[process.name, call] = process, take

    def gone(self, process: SimulatedProcess, *, silent: bool = False) -> None:
        """Break the streams of a process that has ended; a ``silent`` end needs keepalive."""
        for key in [k for k, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[key]
        for end in [e for e in self._streams if process in (e.process, e.peer.process)]:
            self.forget(end)
            side = end.peer if end.process is process else end
            delay = KEEPALIVE * silent + self.rng.random() * 0.005
            for each in (end, end.peer):
                each.lose()
            self._tell(side, delay, "connection reset by peer")

    def hangs(self, process: SimulatedProcess) -> None:
        """Give up the streams of a process that has been paused for longer than keepalive."""
        for end in [e for e in self._streams if process in (e.process, e.peer.process)]:
            self.hit("keepalive gives a peer up")
            self.break_stream(end, "keepalive: the peer does not answer")

    def dial(
        self,
        caller: SimulatedProcess,
        address: str,
        call: str,
        opened: Callable[[End], None],
        failed: Callable[[str], None],
        timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        """Open a stream, trying until the timeout; ``opened`` or ``failed`` follows."""
        give_up_at = self.kernel.now + timeout

        def attempt() -> None:
            listener = self.listeners.get((address, call))
            blocked = self.is_blocked(caller.name, address) or self.is_blocked(address, caller.name)
            if listener is not None and not blocked:
                self._connect(caller, *listener, opened)
            elif self.kernel.now + _RECONNECT_PAUSE < give_up_at:
                caller.after(_RECONNECT_PAUSE, attempt)
            else:
                caller.after(_RECONNECT_PAUSE, lambda: failed("it cannot be reached"))

        caller.after(self.delay(caller.name, address) + self.delay(address, caller.name), attempt)

    def _connect(
        self,
        caller: SimulatedProcess,
        callee: SimulatedProcess,
        take: Callable[[End], None],
        opened: Callable[[End], None],
    ) -> None:
        end, other = End(self, caller), End(self, callee)
        end.peer, other.peer = other, end
        self._streams[end] = None
        callee.run(lambda: take(other))
        opened(end)

    def call(
        self,
        caller: SimulatedProcess,
        address: str,
        call: str,
        message: Packed,
        answered: Callable[[Packed], None] | None = None,
    ) -> None:
        """Make a unary call whose failure nobody waits for."""

        def opened(end: End) -> None:
            if answered is not None:
                end.on_message = answered
            end.send(message)
            if answered is None:
                end.close("asked")

        self.dial(caller, address, call, opened, lambda _: None)
