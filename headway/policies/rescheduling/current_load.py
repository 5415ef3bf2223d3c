"""``current-load``: STAR without prediction, the same rule on the loads of now alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.bounds import Bounded, between, over
from headway.policies.answer import Answer
from headway.policies.rescheduling.protocol import Floats, Horizon, Move, UnitReport
from headway.policies.rescheduling.variance import Rule, best_moves
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class CurrentLoadParams(Bounded):
    """``interval`` and ``rest``, seconds: between decisions, and before a moved request may move
    again. ``theta``: slack around the mean load. ``floor``: the least drop of σ², as a share of
    one unit's part of it. ``units_per_move``: one move for so many units.
    """

    interval: float = over(0, default=5.0)
    theta: float = between(0, 10, default=0.05)
    floor: float = between(0, 1, default=0.05)
    rest: float = between(0, 1e9, default=10.0)
    units_per_move: int = between(1, 1_000_000, default=8)

    def rule(self, weights: Floats, horizon: Horizon, least_remaining: float) -> Rule:
        """Return the algorithm's parameters with these, and these weights and horizon."""
        return Rule(weights, horizon, self.theta, least_remaining, self.floor, self.units_per_move)


class CurrentLoad:
    """Moves the request that lowers the variance of current loads the most."""

    reads_lengths = False

    def __init__(self, params: CurrentLoadParams | None = None) -> None:
        params = params or CurrentLoadParams()
        self.interval, self.rest = params.interval, params.rest
        self.horizon = Horizon(1)
        self._rule = params.rule(np.ones(1), self.horizon, 0.0)

    def moves(
        self, units: Sequence[UnitReport], resting: Collection[StreamKey], *, now: float
    ) -> list[Move]:
        """Best first, each with the loads as those before it leave them; predictions unread."""
        return best_moves(self._rule, [_without_prediction(unit) for unit in units], resting)


def _without_prediction(unit: UnitReport) -> UnitReport:
    requests = unit.requests
    unknown = np.full(len(requests.keys), np.nan)
    return replace(unit, requests=replace(requests, remaining=unknown))


ANSWER = Answer("current-load", CurrentLoad, "STAR, without prediction", CurrentLoadParams)
