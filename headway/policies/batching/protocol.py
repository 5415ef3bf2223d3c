"""What a batching policy reads and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from headway.request import StreamKey


class Candidate(Protocol):
    """One request of a DP unit, as a batching policy sees it."""

    @property
    def key(self) -> StreamKey:
        """Breaks every tie."""

    @property
    def arrival_at(self) -> float:
        """When the client's request reached the gateway, seconds since the epoch."""

    @property
    def decoding(self) -> bool:
        """Whether it needs one token a pass (True) or still has a prompt to compute."""


C = TypeVar("C", bound=Candidate)


class Batching(Protocol):
    """Orders the requests of one DP unit for one forward pass.

    The worker's core serves them in this order while the chunk's tokens and the KV blocks
    last, and takes blocks back from the end of it.
    """

    def order(self, candidates: Iterable[C], *, now: float) -> list[C]:
        """The candidates, best first; the same input always gives the same order."""
