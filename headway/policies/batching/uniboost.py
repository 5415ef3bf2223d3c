"""``uniboost``: all four phases of UniBoost, MemGuard's order with a γ that fits the workload.

γ belongs to a pool, and is fitted where its end-to-end latencies are known; a worker that nobody
has told fits its own completions, which is the same where a pool is one unified instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headway.policies.answer import Answer
from headway.policies.batching.gamma_ada import WAITS, GammaAda, GammaAdaParams
from headway.policies.batching.protocol import Candidate
from headway.policies.batching.uniboost_memguard import MemGuardParams, UniBoostMemGuard


@dataclass(frozen=True, slots=True)
class UniBoostParams(MemGuardParams):
    """``gamma`` is where the fit begins. ``window``, ``least_gamma``, ``most_gamma``: γ-Ada's.

    ``window``: completions, 100 to 1,000,000; γ stays between the two, 1/s. ``fit_to``: ``waits``,
    or to ``responses`` as printed (``gamma_ada``).
    """

    window: int = 1000
    least_gamma: float = 1e-4
    most_gamma: float = 10.0
    fit_to: str = WAITS

    def fit(self) -> GammaAda:
        """Return γ-Ada with these parameters; HeadwayError for what is out of range."""
        params = GammaAdaParams(
            self.window, least=self.least_gamma, most=self.most_gamma, fit=self.fit_to
        )
        return GammaAda(self.gamma, params)

    def __post_init__(self) -> None:
        super(UniBoostParams, self).__post_init__()
        self.fit()


class UniBoost(UniBoostMemGuard):
    """Boosted arrival behind MemGuard, γ fitted to what requests waited."""

    fits_gamma: ClassVar[bool] = True

    def __init__(self, params: UniBoostParams | None = None) -> None:
        params = params or UniBoostParams()
        super().__init__(params)
        self._fit: GammaAda | None = params.fit()

    def completed(self, candidate: Candidate, *, now: float) -> None:
        """Take in a response time, unless the pool's γ comes from elsewhere."""
        seconds = now - candidate.arrival_at
        if self._fit is not None and self._fit.completed(seconds, candidate.served):
            super().tune(self._fit.gamma)

    def tune(self, gamma: float) -> None:
        """Take the pool's γ and end this worker's own fit."""
        super().tune(gamma)
        self._fit = None


ANSWER = Answer("uniboost", UniBoost, "UniBoost, all four phases", UniBoostParams)
