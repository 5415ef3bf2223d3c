"""Virtual time: what happens when, in order of (time, order of asking)."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

Act = Callable[[Any], None]


class Agenda:
    """A heap of happenings, each a function and what it is called with."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Act, Any]] = []
        self._sequence = 0

    def at(self, at: float, act: Act, what: Any) -> None:
        """Let it happen at an instant, now or later."""
        self._sequence += 1
        heappush(self._heap, (at, self._sequence, act, what))

    def run(self, until: float = inf) -> None:
        """Let everything happen up to ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act, what = heappop(heap)
            act(what)
