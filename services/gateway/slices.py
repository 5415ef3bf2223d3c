"""Long answers, written a little at a time: the event loop stays free for everybody's tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

_SLICE = 0.002
"""Seconds of writing between two looks at what else there is to do."""


class Slices:
    """Answers that are being written, in turns."""

    def __init__(self) -> None:
        self._waiting: deque[Iterator[None]] = deque()

    def add(self, steps: Iterator[None]) -> None:
        """Take the steps of another answer, each of which is short."""
        self._waiting.append(steps)
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        steps = self._waiting[0]
        until, has_more = time.perf_counter() + _SLICE, False
        try:
            for _ in steps:
                if time.perf_counter() >= until:
                    has_more = True
                    break
        finally:
            self._waiting.popleft()
            if has_more:
                self._waiting.append(steps)
            if self._waiting:
                self._go_on()
