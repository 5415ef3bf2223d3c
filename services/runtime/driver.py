"""A driver that runs a core on asyncio: events in, actions performed, one timer armed."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headway.core.protocol import Core
from services.runtime.clock import Clock
from services.runtime.event_record import record_of

E = TypeVar("E")
A = TypeVar("A")

_TICK = 1e-3  # uvloop counts timers in whole milliseconds and lets them go up to one early


class Driver(Generic[E, A]):
    """A driver of one core on one event loop.

    ``perform`` must not block. An event posted from within ``perform`` waits until the current
    actions are done, so a core is never entered twice. An exception from the core or ``perform``
    reaches the caller of ``post``; the other actions are performed before, the timer stays armed,
    and later events are served.
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
        self._armed_for = math.inf
        self._record = record_of(core)
        self._arm()

    def post(self, event: E) -> None:
        """Pass an event to the core and perform its actions (later, if called from ``perform``)."""
        if self._closed:
            return
        self._events.append(event)
        if not self._busy:
            self._serve()

    def close(self) -> None:
        """Stop: pass nothing more to the core."""
        self._closed = True
        self._events.clear()
        self._disarm()
        if self._record is not None:
            self._record.close()
            self._record = None

    def _serve(self) -> None:
        """Pass all queued events to the core."""
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                now = self._clock.now()
                self._perform_all(event, now, self._core.handle(event, now=now))
        finally:
            self._busy = False
            self._arm()
            if self._events:  # one event raised an exception
                self._loop.call_soon(self._serve)

    def _perform_all(self, event: E | None, now: float, actions: Sequence[A]) -> None:
        if self._record is not None:
            self._record.note(event, now, actions)
        failed: Exception | None = None
        for action in actions:
            try:
                self._perform(action)
            except Exception as error:  # raised below: the other actions are of other requests
                failed = failed or error
        if failed is not None:
            raise failed

    def _arm(self) -> None:
        """Arm the timer for ``next_wakeup``; leave an earlier timer in place."""
        wake_at = self._core.next_wakeup
        if wake_at is None or self._closed:
            self._disarm()
        elif wake_at < self._armed_for:
            self._disarm()
            delay = max(0.0, wake_at - self._clock.now())
            self._timer = self._loop.call_later(math.ceil(delay / _TICK) * _TICK, self._wake)
            self._armed_for = wake_at

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_for = None, math.inf

    def _wake(self) -> None:
        self._timer, self._armed_for = None, math.inf
        wake_at, now = self._core.next_wakeup, self._clock.now()
        if wake_at is None or now < wake_at:  # next_wakeup has moved, or the timer is early
            self._arm()
            return
        self._busy = True
        try:
            self._perform_all(None, now, self._core.wake(now=now))
        finally:
            self._busy = False
            self._serve()
