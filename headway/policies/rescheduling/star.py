"""``star``: Algorithm 1 of STAR, on loads that are simulated ahead with predicted lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import require_between, require_over
from headway.policies.answer import Answer
from headway.policies.rescheduling.protocol import Floats, Horizon, Move, UnitReport
from headway.policies.rescheduling.variance import Rule, best_moves
from headway.request import StreamKey


@dataclass(frozen=True, slots=True)
class StarParams:
    """``interval`` and ``rest``, seconds: between decisions, and before a moved request may move
    again. ``theta``: slack around the mean load, 0 to 10. ``num_steps`` of ``step_tokens`` tokens:
    the horizon; ``rho``: what a step weighs against the one before it, over 0 to 1.
    ``migration_passes``: C_mig / T_exec, passes that a move costs. ``floor``: the least drop of σ²,
    as a share of one unit's part of it, 0 to 1. ``units_per_move``: one move for so many units.
    """

    interval: float = 5.0
    theta: float = 0.05
    num_steps: int = 16
    step_tokens: int = 128
    rho: float = 0.98
    migration_passes: float = 20.0
    floor: float = 0.05
    rest: float = 10.0
    units_per_move: int = 8

    def __post_init__(self) -> None:
        require_over("interval", self.interval, 0)
        require_between("theta", self.theta, 0, 10)
        Horizon(self.num_steps, self.step_tokens)
        require_over("rho", self.rho, 0)
        require_between("rho", self.rho, 0, 1)
        require_between("migration_passes", self.migration_passes, 0, 1e9)
        require_between("floor", self.floor, 0, 1)
        require_between("rest", self.rest, 0, 1e9)
        require_between("units_per_move", self.units_per_move, 1, 1_000_000)


def step_weights(num_steps: int, rho: float) -> Floats:
    """Return β_0 … β_H, their sum 1: half on now, the rest geometric over the steps (eq. 4)."""
    ahead = rho ** np.arange(1, num_steps + 1, dtype=np.float64)
    return np.concatenate([[0.5], 0.5 * ahead / ahead.sum()])


class Star:
    """Moves the request that lowers the variance of current and predicted loads the most."""

    reads_lengths = True

    def __init__(self, params: StarParams | None = None) -> None:
        params = params or StarParams()
        self.interval, self.rest = params.interval, params.rest
        self.horizon = Horizon(params.num_steps, params.step_tokens)
        self._rule = Rule(
            weights=step_weights(params.num_steps, params.rho),
            horizon=self.horizon,
            theta=params.theta,
            least_remaining=params.migration_passes,
            floor=params.floor,
            units_per_move=params.units_per_move,
        )

    def moves(
        self, units: Sequence[UnitReport], resting: Collection[StreamKey], *, now: float
    ) -> list[Move]:
        """Return the best first, each with the loads as those before it leave them."""
        return best_moves(self._rule, units, resting)


ANSWER = Answer("star", Star, "STAR, Algorithm 1", StarParams)
