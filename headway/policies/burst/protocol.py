"""The input and the output of a burst detector."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Label(NamedTuple):
    """A request's label: whether it is beyond the mean of traffic, and which signal says so.

    ``signal``: ``requests`` or ``tokens``, "" for none. ``ahead`` and ``allowed``: of that
    signal (of requests without one): by how many traffic before this request ran ahead of its
    allowance, and by how many it may.
    """

    is_burst: bool
    signal: str
    ahead: float
    allowed: float


class Burst(Protocol):
    """A detector that labels each request as it arrives at the gateway."""

    labels: bool = True
    """False if it never labels one: then the share of bursts is not known, which is not 0."""

    def arrived(self, num_input_tokens: int, *, now: float) -> Label:
        """Return the label of a request with so many prompt tokens; ``now`` in seconds."""
