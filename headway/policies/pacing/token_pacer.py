"""``token-pacer``: answering tokens at the pace of a reader (PASCAL, section IV-D).

Token k, from 0, is due at ``first_at + k · tpot``, where ``first_at`` is when the first one came.
It goes to the reader at the later of that and its coming: bursts are buffered, and what comes late
goes at once. Due times never shift: after a stall the pacer catches up, and no token is held beyond
its due time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.bounds import Bounded, between
from headway.policies.answer import Answer


@dataclass(frozen=True, slots=True)
class TokenPacerParams(Bounded):
    """``tpot``: seconds a reader takes for a token."""

    tpot: float = between(0.001, 10, default=0.1)


class TokenPacer:
    """A pacer that releases an answering token when its reader needs it, and a late one at once."""

    paces = True

    def __init__(self, params: TokenPacerParams | None = None) -> None:
        self._tpot = (params or TokenPacerParams()).tpot

    def pace(self, tpot: float | None = None) -> TokenPace:
        """Return the pace of a new stream, whose reader takes ``tpot`` seconds a token if given."""
        return TokenPace(self._tpot if tpot is None else tpot)

    def due_at(
        self, came_at: NDArray[np.float64], tpot: float | None = None
    ) -> NDArray[np.float64]:
        """Return when each token of an answer is due, (n,), for tokens that came so, (n,)."""
        pace = self._tpot if tpot is None else tpot
        return np.asarray(came_at[0] + np.arange(len(came_at)) * pace)


class TokenPace:
    """A stream at the pace of a reader."""

    def __init__(self, tpot: float) -> None:
        self._tpot = tpot
        self._first_at: float | None = None
        self._num_arrived = 0
        self._num_released = 0

    @property
    def due_at(self) -> float | None:
        """When the next token in hand is due; None without one."""
        if self._first_at is None or self._num_released == self._num_arrived:
            return None
        return self._due_at(self._first_at, self._num_released)

    def arrived(self, num_tokens: int, *, now: float) -> None:
        """So many more tokens are in hand; the first of all starts the reader's clock."""
        if num_tokens > 0 and self._first_at is None:
            self._first_at = now
        self._num_arrived += num_tokens

    def release(self, *, now: float) -> int:
        """Return the tokens that are in hand and due."""
        if self._first_at is None:
            return 0
        num_due = min(self._num_due(self._first_at, now), self._num_arrived)
        count = max(0, num_due - self._num_released)
        self._num_released += count
        return count

    def flush(self) -> int:
        """Return all tokens in hand at the end of the stream."""
        count = self._num_arrived - self._num_released
        self._num_released = self._num_arrived
        return count

    def slack(self, *, now: float) -> float:
        """Seconds until the token after the last one in hand is due, at least 0."""
        if self._first_at is None:
            return 0.0
        return max(0.0, self._due_at(self._first_at, self._num_arrived) - now)

    def _due_at(self, first_at: float, k: int) -> float:
        return first_at + k * self._tpot

    def _num_due(self, first_at: float, now: float) -> int:
        """Tokens with ``due_at <= now``, to the last bit: who wakes at ``due_at`` must find one."""
        count = int((now - first_at) / self._tpot) + 1  # off by one at most
        if self._due_at(first_at, count) <= now:
            return count + 1
        return count - 1 if self._due_at(first_at, count - 1) > now else count


ANSWER = Answer("token-pacer", TokenPacer, "PASCAL, section IV-D; Andes", TokenPacerParams)
