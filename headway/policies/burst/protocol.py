"""What a burst detector reads and what it answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Label(NamedTuple):
    """Whether a request is beyond what the mean would have brought, and which signal says so.

    ``signal``: ``requests`` or ``tokens``, "" for none. ``rate`` and ``allowed``: of that
    signal (of requests without one), per second: now, this request included, and at most.
    """

    is_burst: bool
    signal: str
    rate: float
    allowed: float


class Burst(Protocol):
    """Labels each request as it arrives at the gateway."""

    def arrived(self, num_input_tokens: int, *, now: float) -> Label:
        """The label of a request with so many prompt tokens; s."""
