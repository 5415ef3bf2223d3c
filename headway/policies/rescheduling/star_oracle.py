"""``star-oracle``: STAR's Algorithm 1 on true lengths, which only the simulator knows."""

from __future__ import annotations

from headway.policies.answer import Answer
from headway.policies.rescheduling.star import Star, StarParams


class StarOracle(Star):
    """STAR on reports whose remaining lengths are true: an upper bound for predictors.

    It decides alike; whoever runs it has the workers estimate with ``oracle``.
    """


ANSWER = Answer(
    "star-oracle",
    StarOracle,
    "STAR, Algorithm 1 with true lengths",
    StarParams,
    instead="rescheduling star",
)
