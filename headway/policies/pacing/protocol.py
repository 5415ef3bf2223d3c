"""The input and the output of a pacing policy."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    """A stream of answering tokens on its way to a reader; instants in seconds."""

    @property
    def due_at(self) -> float | None:
        """When the next token in hand is due; None without one."""

    def arrived(self, num_tokens: int, *, now: float) -> None:
        """So many more tokens are in hand."""

    def release(self, *, now: float) -> int:
        """Return how many tokens go to the reader now."""

    def flush(self) -> int:
        """Return all tokens in hand at the end of the stream."""

    def slack(self, *, now: float) -> float:
        """Seconds until the reader has nothing left to read, at least 0."""


class Pacing(Protocol):
    """A rule for when a reader sees each token."""

    paces: bool = True
    """False for a policy that never holds a token."""

    def pace(self, tpot: float | None = None) -> Pace:
        """Return the pace of a new stream, whose reader takes ``tpot`` seconds a token if given."""
