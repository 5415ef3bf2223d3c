"""A core on virtual time: the simulator's counterpart of the live services' driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headway.core.protocol import Core
from headway.sim.kernel import Kernel, Timer

E = TypeVar("E")
A = TypeVar("A")


class Node(Generic[E, A]):
    """A core that runs: events in, actions to ``perform``, one timer for its next wake-up.

    ``wakes`` is called before it wakes.
    """

    def __init__(
        self,
        kernel: Kernel,
        core: Core[E, A],
        perform: Callable[[A], None],
        wakes: Callable[[], None] | None = None,
    ) -> None:
        self.core = core
        self._kernel = kernel
        self._perform = perform
        self._wakes = wakes
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._arm()

    def post(self, event: E) -> None:
        """Let the core react now."""
        for action in self.core.handle(event, now=self._kernel.now):
            self._perform(action)
        self._arm()

    def stop(self) -> None:
        """Never wake the core again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        if self._wakes is not None:
            self._wakes()
        for action in self.core.wake(now=self._kernel.now):
            self._perform(action)
        self._arm()

    def _arm(self) -> None:
        at = self.core.next_wakeup
        if self._timer is not None:
            if at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._kernel.at(at, self._wake)
