"""Virtual time: a heap of what happens when. The same pushes give the same order, always."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf

Happening = Callable[[], object]


class Timer:
    """An entry of the heap; ``cancel`` takes it back."""

    __slots__ = ("happening",)

    def __init__(self, happening: Happening) -> None:
        self.happening: Happening | None = happening

    def cancel(self) -> None:
        """Take it back; a repeat does nothing."""
        self.happening = None


class Kernel:
    """The heap of happenings, run in order of (time, order in which they were asked for).

    ``now`` in seconds. A happening may ask for others, at ``now`` or later.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._sequence = 0
        self._heap: list[tuple[float, int, Timer]] = []

    def at(self, at: float, happening: Happening) -> Timer:
        """Let it happen at an instant; the past is now."""
        timer = Timer(happening)
        self._sequence += 1
        heapq.heappush(self._heap, (at if at > self.now else self.now, self._sequence, timer))
        return timer

    def after(self, delay: float, happening: Happening) -> Timer:
        """Let it happen ``delay`` seconds from now."""
        return self.at(self.now + delay, happening)

    def run(self, until: float = inf) -> None:
        """Let everything happen up to ``until``, which is then the time unless all has ended."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at, _, timer = heapq.heappop(heap)
            if timer.happening is None:
                continue
            self.now = at
            timer.happening()
        if until < inf:
            self.now = max(self.now, until)
