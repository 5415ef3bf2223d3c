"""A process in virtual time: its clock, its pauses, its end, and the driver of its core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headway.core.protocol import Core
from headway.sim.kernel import Happening, Kernel, Timer

E = TypeVar("E")
A = TypeVar("A")

EPOCH = 1_700_000_000.0
"""The true time, in seconds since the epoch, when a history begins."""


class SimulatedProcess:
    """One life of a process on a host whose clock is ``skew`` seconds ahead.

    While it is paused, what happens to it waits; a slow process takes ``drag`` seconds for each.
    """

    def __init__(self, kernel: Kernel, name: str, skew: float = 0.0) -> None:
        self.kernel = kernel
        self.name = name
        self.is_alive = True
        self.drag = 0.0
        self._offset = EPOCH + skew  # read once at the start, as the live clock is
        self.is_paused = False
        self._backlog: deque[Happening] = deque()
        self._is_draining = False

    def now(self) -> float:
        """Return the time that this process believes in, seconds since the epoch."""
        return self._offset + self.kernel.now

    def after(self, delay: float, happening: Happening) -> Timer:
        """Let it happen in this process after ``delay`` seconds."""
        return self.kernel.after(delay, lambda: self.run(happening))

    def run(self, happening: Happening) -> None:
        """Let it happen now, or as soon as the process runs again; never after its end."""
        if not self.is_alive:
            return
        if self.is_paused or self.drag or self._backlog:
            self._backlog.append(happening)
            self._drain_soon()
        else:
            happening()

    def pause(self) -> None:
        """Stop, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue with everything that has happened meanwhile."""
        self.is_paused = False
        self._drain_soon()

    def kill(self) -> None:
        """End at once."""
        self.is_alive = False
        self._backlog.clear()

    def _drain_soon(self) -> None:
        if not (self._is_draining or self.is_paused) and self._backlog:
            self._is_draining = True
            self.kernel.after(self.drag, self._drain)

    def _drain(self) -> None:
        self._is_draining = False
        if not self.is_alive or self.is_paused or not self._backlog:
            return
        self._backlog.popleft()()
        self._drain_soon()


class SimulatedDriver(Generic[E, A]):
    """A core's driver in a process, as the live services' driver is on asyncio."""

    def __init__(
        self, process: SimulatedProcess, core: Core[E, A], perform: Callable[[A], None]
    ) -> None:
        self.core = core
        self._process = process
        self._perform = perform
        self._events: deque[E] = deque()
        self._is_busy = False
        self._timer: Timer | None = None
        self._armed_for = 0.0
        self._arm()

    def post(self, event: E) -> None:
        """Pass an event to the core; one from within ``perform`` waits its turn."""
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                now = self._process.now()
                self._perform_all(self.core.handle(self._events.popleft(), now=now))
        finally:
            self._is_busy = False
        self._arm()

    def close(self) -> None:
        """Wake the core no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _perform_all(self, actions: Sequence[A]) -> None:
        for action in actions:
            self._perform(action)

    def _arm(self) -> None:
        at = self.core.next_wakeup
        if self._timer is not None:
            if at == self._armed_for:
                return
            self.close()
        if at is not None:
            self._armed_for = at
            delay = max(at - self._process.now(), 0.0)
            self._timer = self._process.after(delay + 1e-6, self._wake)

    def _wake(self) -> None:
        self._timer = None
        at = self.core.next_wakeup
        now = self._process.now()
        if at is not None and at <= now:
            self._is_busy = True
            try:
                self._perform_all(self.core.wake(now=now))
            finally:
                self._is_busy = False
            while self._events:
                self.post(self._events.popleft())
        self._arm()
