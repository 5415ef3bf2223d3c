"""Velocities corrected by live passes, slowly: the profile is the prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from headway.errors import require_between
from headway.policies.scaling.protocol import VelocitySample

_MOST_WORKERS = 4096
_MOST_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class LearnedParams:
    """``weight`` of one pass in the mean (0 to 1; 0: the profile as it is).

    ``num_warm_up``: first passes of a fresh worker that do not count. ``alarm``: the drift that
    is told, a share of the profile's velocity (over 0).
    """

    weight: float = 0.005
    num_warm_up: int = 32
    alarm: float = 0.2

    def __post_init__(self) -> None:
        require_between("weight", self.weight, 0, 1)
        require_between("num_warm_up", self.num_warm_up, 0, 1_000_000)
        require_between("alarm", self.alarm, 0.01, 10)


class LearnedVelocity:
    """One factor a stage, by which its profiled velocities are off; 1 before any pass.

    A sample that is no velocity is dropped and counted; one pass counts as at most 4 times or a
    quarter of the profile.
    """

    def __init__(self, params: LearnedParams | None = None) -> None:
        self._params = params or LearnedParams()
        self._factors: dict[str, float] = {}
        self._num_passes: dict[str, int] = {}
        self.num_dropped = 0

    def observe(self, sample: VelocitySample) -> None:
        """One pass of a busy instance."""
        measured, profiled = sample.measured_tokens_per_s, sample.profiled_tokens_per_s
        if not (isfinite(measured) and measured > 0 and isfinite(profiled) and profiled > 0):
            self.num_dropped += 1
            return
        if self._count(sample.worker_id) <= self._params.num_warm_up:
            return
        ratio = min(max(measured / profiled, 1 / _MOST_FACTOR), _MOST_FACTOR)
        factor = self.factor(sample.stage)
        self._factors[sample.stage] = factor + self._params.weight * (ratio - factor)

    def _count(self, worker_id: str) -> int:
        count = self._num_passes.pop(worker_id, 0) + 1
        self._num_passes[worker_id] = count  # at the end: the longest silent is forgotten first
        if len(self._num_passes) > _MOST_WORKERS:
            del self._num_passes[next(iter(self._num_passes))]
        return count

    def factor(self, stage: str) -> float:
        """What the stage's profiled velocities are to be multiplied with."""
        return self._factors.get(stage, 1.0)

    def drifts(self) -> list[str]:
        """Stages that are off by more than the alarm, for the log."""
        return [
            f"{stage} velocity is {factor - 1:+.0%} off its profile: measure it again"
            for stage, factor in sorted(self._factors.items())
            if abs(factor - 1) > self._params.alarm
        ]
