"""``oracle``: the true remaining length, which only the simulator knows."""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.estimation.protocol import Estimable


class Oracle:
    """The truth, in the simulator alone."""

    interval = 1 << 30
    """Decode steps between predictions: it never has to look again."""

    def remaining(self, request: Estimable) -> float | None:
        """Tokens still to come; None outside the simulator."""
        left = request.true_remaining
        return None if left is None else max(1.0, float(left))


ANSWER = Answer(
    "oracle", Oracle, "STAR, perfect prediction", instead="estimation countdown or bucket-mean"
)
