"""The protocol of a core: events and time in, actions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

E_contra = TypeVar("E_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Core(Protocol[E_contra, A_co]):
    """A service's decisions, without I/O. Times are seconds since the epoch."""

    def handle(self, event: E_contra, *, now: float) -> Sequence[A_co]:
        """React to one event."""

    def wake(self, *, now: float) -> Sequence[A_co]:
        """React to the passing of time; called at or after ``next_wakeup``."""

    @property
    def next_wakeup(self) -> float | None:
        """Instant when the core wants to be woken; None: only events matter."""
