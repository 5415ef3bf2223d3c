"""The clock that cores get their time from."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch that never jump: the wall clock at start, then monotonic time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._offset + time.monotonic()
