"""γ-Ada for pools that know end-to-end latencies: one fit per model, sent to all its workers.

A worker only sees the completions of its own requests; one that only prefills sees none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from headway.core.scheduler.instance import Instance
from headway.core.scheduler.state import SchedulerState
from headway.messages import FinishedRequest, Tuned
from headway.policies.batching.gamma_ada import GammaAda
from headway.request import FinishReason

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class GammaFits:
    """The fits by model; none without ``gamma_fit`` in the settings."""

    def __init__(self, state: SchedulerState, instances: Mapping[str, Instance]) -> None:
        self._state = state
        self._instances = instances
        self._fits: dict[str, GammaAda] = {}

    def completed(
        self, instance: Instance, finished: Iterable[FinishedRequest], *, now: float
    ) -> bool:
        """Take finished requests before they are forgotten; return whether γ has changed."""
        settings, model = self._state.settings, instance.info.model
        if settings.gamma_fit is None:
            return False
        fit = self._fits.get(model)
        if fit is None:
            fit = self._fits[model] = settings.gamma_fit.fit()
            if model in self._state.gammas:
                fit.recall(self._state.gammas[model])
        if not sum(fit.completed(*times) for times in self._times(finished, now)):
            return False
        self._state.gammas[model] = fit.gamma
        for _, other in sorted(self._instances.items()):
            if other.info.model == model:
                self.tell(other)
        return True

    def recall(self, model: str, gamma: float) -> None:
        """Continue an earlier leader's fit; 0 for none."""
        if self._state.settings.gamma_fit is not None and 0 < gamma < inf:
            self._state.gammas[model] = gamma

    def tell(self, instance: Instance) -> None:
        """Send a worker its model's γ, once there is one."""
        gamma = self._state.gammas.get(instance.info.model)
        if gamma is not None:
            self._state.tell_worker(instance.info.worker_id, Tuned(gamma))

    def _times(
        self, finished: Iterable[FinishedRequest], now: float
    ) -> Iterable[tuple[float, float]]:
        """Yield seconds since the arrival, where that is known, and of those that were served."""
        for each in finished:
            entry = self._state.tracked.get(each.key)
            if each.finish_reason in _ENDS and entry is not None and entry.request is not None:
                yield now - entry.request.arrival_at, each.served
