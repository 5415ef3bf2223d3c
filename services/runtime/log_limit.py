"""A bound on what strangers can make a service log."""

from __future__ import annotations

_MOST, _PERIOD = 60, 60.0  # lines, seconds


class LogLimit:
    """Lets so many lines through in a minute, and counts those that it holds back."""

    def __init__(self) -> None:
        self._ends_at = 0.0
        self._num_taken = 0

    def take(self, now: float) -> int | None:
        """Return None to log nothing, else how many lines were held back since the last one."""
        if now >= self._ends_at:
            held_back = max(0, self._num_taken - _MOST)
            self._ends_at, self._num_taken = now + _PERIOD, 1
            return held_back
        self._num_taken += 1
        return 0 if self._num_taken <= _MOST else None
