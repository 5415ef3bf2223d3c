"""Runs a core on asyncio: events in, actions performed, one timer armed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headway.core.protocol import Core
from services.runtime.clock import Clock

E = TypeVar("E")
A = TypeVar("A")


class Driver(Generic[E, A]):
    """One core, one event loop.

    ``perform`` never blocks. An event posted from within ``perform`` waits until the actions
    of the present one are done, so a core is never entered twice.
    """

    def __init__(self, core: Core[E, A], perform: Callable[[A], None], clock: Clock) -> None:
        self._core = core
        self._perform = perform
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._events: deque[E] = deque()
        self._busy = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._arm()

    def post(self, event: E) -> None:
        """Tell the core; on return its actions have been performed (unless posted from one)."""
        if self._closed:
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                self._perform_all(self._core.handle(event, now=self._clock.now()))
        finally:
            self._busy = False
        self._arm()

    def close(self) -> None:
        """Tell the core nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _perform_all(self, actions: Sequence[A]) -> None:
        for action in actions:
            self._perform(action)

    def _arm(self) -> None:
        wake_at = self._core.next_wakeup
        if wake_at == self._armed_for or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_for = None, wake_at
        if wake_at is not None:
            delay = max(0.0, wake_at - self._clock.now())
            self._timer = self._loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer = self._armed_for = None
        if self._closed:
            return
        self._busy = True
        try:
            self._perform_all(self._core.wake(now=self._clock.now()))
        finally:
            self._busy = False
        if self._events:
            self.post(self._events.popleft())
        self._arm()
