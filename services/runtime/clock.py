"""The clock that cores get their time from."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch that never jump: the wall clock at start, then monotonic time.

    ``ahead``: seconds by which it is wrong, for tests of hosts whose clocks differ.
    """

    def __init__(self, ahead: float = 0.0) -> None:
        self._offset = time.time() + ahead - time.monotonic()

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._offset + time.monotonic()
