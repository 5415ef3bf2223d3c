"""``none``: the baseline. What runs stays where it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from headway.policies.answer import Answer
from headway.policies.rescheduling.protocol import Horizon, Move, UnitReport
from headway.request import StreamKey


class NoRescheduling:
    """Rescheduling that never moves a running request."""

    reads_lengths = False

    def __init__(self) -> None:
        self.interval = self.rest = inf
        self.horizon = Horizon(1)

    def moves(
        self, units: Sequence[UnitReport], resting: Collection[StreamKey], *, now: float
    ) -> list[Move]:
        """Return no moves."""
        return []


ANSWER = Answer("none", NoRescheduling, "STAR's baseline")
