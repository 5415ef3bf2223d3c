"""``star``: Algorithm 1 of STAR, on loads that are simulated ahead with predicted lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.bounds import at_least, between, over
from headway.cost.costs import Constant, Costs
from headway.policies.answer import Answer
from headway.policies.readers import CostReader, chosen
from headway.policies.rescheduling.current_load import CurrentLoadParams
from headway.policies.rescheduling.protocol import Floats, Horizon, Move, UnitReport
from headway.policies.rescheduling.variance import best_moves
from headway.request import StreamKey

_LINK = 12.5e9  # bytes/s


@dataclass(frozen=True, slots=True)
class StarParams(CurrentLoadParams):
    """``num_steps`` of ``step_tokens`` tokens: the horizon. ``rho``: what a step weighs against
    the one before it. ``link_bytes_per_s``: of a worker's link, from which C_mig follows; 0: the
    pool's, measured or by profile, and 12.5e9 (100 Gbit/s) while neither is known.
    ``migration_passes``: C_mig / T_exec where a worker has not measured its T_exec yet.
    """

    num_steps: int = 16
    step_tokens: int = 128
    rho: float = over(0, 1, default=0.98)
    link_bytes_per_s: float = at_least(0, default=0.0)
    migration_passes: float = between(0, 1e9, default=20.0)

    def __post_init__(self) -> None:
        CurrentLoadParams.__post_init__(self)
        Horizon(self.num_steps, self.step_tokens)


def step_weights(num_steps: int, rho: float) -> Floats:
    """Return β_0 … β_H, their sum 1: half on now, the rest geometric over the steps (eq. 4)."""
    ahead = rho ** np.arange(1, num_steps + 1, dtype=np.float64)
    return np.concatenate([[0.5], 0.5 * ahead / ahead.sum()])


class Star(CostReader):
    """Moves the request that lowers the variance of current and predicted loads the most."""

    reads_lengths = True

    def __init__(self, params: StarParams | None = None) -> None:
        params = params or StarParams()
        self.interval, self.rest = params.interval, params.rest
        self.horizon = Horizon(params.num_steps, params.step_tokens)
        weights = step_weights(params.num_steps, params.rho)
        self._rule = params.rule(weights, self.horizon, params.migration_passes)
        self._given = params.link_bytes_per_s or None
        self.learn(Costs())

    def learn(self, costs: Costs) -> None:
        """Take the link's rate, unless it was given."""
        known, source = costs.link_bytes_per_s or None, costs.source_of("link_bytes_per_s")
        self._link = chosen("link", self._given, known, source, _LINK)
        self._rule = replace(self._rule, link_bytes_per_s=self._link.value)

    def constants(self) -> Sequence[Constant]:
        """Return the link's rate."""
        return (self._link,)

    def moves(
        self, units: Sequence[UnitReport], resting: Collection[StreamKey], *, now: float
    ) -> list[Move]:
        """Return the best first, each with the loads as those before it leave them."""
        return best_moves(self._rule, units, resting)


ANSWER = Answer("star", Star, "STAR, Algorithm 1", StarParams)
