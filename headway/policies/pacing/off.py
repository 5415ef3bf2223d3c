"""``off``: the baseline. Every token goes to its reader as it comes."""

from __future__ import annotations

from headway.policies.answer import Answer


class PacingOff:
    """A pacer that lets each token go to its reader at once."""

    paces = False

    def pace(self, tpot: float | None = None) -> Unpaced:
        """Return the pace of a new stream."""
        return Unpaced()


class Unpaced:
    """A stream that holds nothing."""

    due_at: float | None = None

    def __init__(self) -> None:
        self._num_in_hand = 0

    def arrived(self, num_tokens: int, *, now: float) -> None:
        """Let them go with the next release."""
        self._num_in_hand += num_tokens

    def release(self, *, now: float) -> int:
        """Return all tokens in hand."""
        return self.flush()

    def flush(self) -> int:
        """Return all tokens in hand."""
        count, self._num_in_hand = self._num_in_hand, 0
        return count

    def slack(self, *, now: float) -> float:
        """Return 0: nothing is ever in hand."""
        return 0.0


ANSWER = Answer("off", PacingOff, "PASCAL's baseline")
