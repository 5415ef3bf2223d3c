"""The pace at which an address is answered on a metrics port, where nobody shows a key.

A scrape takes some milliseconds of the interpreter, which it shares with the service. Whoever asks
on and on waits for its turn in a thread of its own, and reads a text that is not rendered anew.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

_PER_S = 20.0
"""Answers per second to an address that asks on and on."""
_BURST = 100.0
"""Answers that it has at once before."""
_MOST_CONNECTIONS = 512
_MOST_OF_ONE = 128
"""Connections of an address: a thread and a file each."""
_MOST_KEPT = 4096
KEPT = 1.0
"""Seconds for which one that asks on and on reads the same text."""


class ScrapePace:
    """The places of connections, and when each address is answered; several threads use it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._places = Counter[str]()
        self._free_at: dict[str, float] = {}
        """When an address would have had its answers at the pace alone."""

    def take(self, address: str) -> bool:
        """Take a place for a connection; False if there is none."""
        with self._lock:
            if self._places.total() >= _MOST_CONNECTIONS or self._places[address] >= _MOST_OF_ONE:
                return False
            self._places[address] += 1
            return True

    def give_back(self, address: str) -> None:
        """Give a place back."""
        with self._lock:
            self._places[address] -= 1
            if not self._places[address]:
                del self._places[address]

    def wait(self, address: str) -> float:
        """Count another answer; return the seconds until it may be given."""
        with self._lock:
            now = self._now()
            if len(self._free_at) >= _MOST_KEPT:
                self._free_at = {who: at for who, at in self._free_at.items() if at > now}
            free_at = max(self._free_at.get(address, 0.0), now) + 1 / _PER_S
            self._free_at[address] = free_at
            return max(0.0, free_at - now - _BURST / _PER_S)

    def is_flood(self, address: str) -> bool:
        """Return whether an address asks on and on."""
        return self._free_at.get(address, 0.0) - self._now() >= (_BURST - 1) / _PER_S
