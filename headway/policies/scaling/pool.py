"""The size of a pool: it grows at once, and shrinks after a quiet period if the rest suffices."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil, inf

_MOST = 1e9  # more than anybody has
_EPSILON = 1e-9  # a need of 2.0000000001 instances is one of 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """The size of a pool: ``least`` to ``most`` instances; it shrinks after ``hold_down`` seconds.

    ``margin``: the smaller pool must carry the load with this share of it to spare, so that it
    does not grow again at once.
    """

    least: int
    most: int
    hold_down: float
    margin: float


class Pool:
    """Turns a need, in instances and fractions of them, into a size that does not swing."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._size: int | None = None
        self._quiet_since = inf
        self._needs: deque[tuple[float, float]] = deque()  # falling needs, oldest first

    @property
    def size(self) -> int | None:
        """The last answer; None before any."""
        return self._size

    def wait(self, hold_down: float) -> None:
        """Set the hold-down (s)."""
        self._bounds = replace(self._bounds, hold_down=hold_down)

    def limit(self, least: int, most: int) -> None:
        """Set the bounds; the size is within them at once."""
        self._bounds = replace(self._bounds, least=least, most=most)
        if self._size is not None:
            self._size = self._clamped(self._size)

    def hold(self, num_instances: int | None) -> int:
        """Keep the size, for lack of a figure; the quiet period begins anew.

        Before any decision the size is the instances there are, or the minimum if unknown.
        """
        if self._size is None:
            self._size = self._clamped(
                self._bounds.least if num_instances is None else num_instances
            )
        self._quiet_since = inf
        self._needs.clear()
        return self._size

    def decide(
        self,
        need: float,
        num_instances: int | None,
        *,
        now: float,
        held: float = 0.0,
        may_shrink: bool = True,
    ) -> int:
        """Return the size for this need: more at once, fewer if they would have sufficed of late.

        ``held``: instances that what is inside now fills; a smaller pool has no room for it.
        """
        size = self._size
        if size is None:
            size = self._clamped(self._bounds.least if num_instances is None else num_instances)
        self._remember(need, now)
        wanted = self._clamped(_whole(need))
        if wanted >= size:
            size = wanted
        elif may_shrink and now - self._quiet_since >= self._bounds.hold_down:
            size = min(size, max(wanted, self._carries(), self._clamped(_whole(held))))
        if not may_shrink:
            self._quiet_since = inf
        self._size = size
        return size

    def _carries(self) -> int:
        """Return the smallest pool that carries the quiet period's greatest need with a margin."""
        return self._clamped(_whole(self._needs[0][1] / (1 - self._bounds.margin)))

    def _remember(self, need: float, now: float) -> None:
        self._quiet_since = min(self._quiet_since, now)
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._bounds.hold_down:
            self._needs.popleft()

    def _clamped(self, num: int) -> int:
        return max(self._bounds.least, min(num, self._bounds.most))


def _whole(need: float) -> int:
    return ceil(min(need, _MOST) - _EPSILON)
