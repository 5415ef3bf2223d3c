"""Velocities corrected by live passes, slowly: the profile is the prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from headway.bounds import Bounded, between
from headway.cost.pass_time import PassTime
from headway.policies.scaling.protocol import WorkSample

_MOST_WORKERS = 4096
_MOST_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class LearnedParams(Bounded):
    """``weight`` of one pass in the mean (0: the profile as it is).

    ``num_warm_up``: first passes of a fresh worker that do not count. ``alarm``: the drift that
    is told, a share of the profile's velocity.
    """

    weight: float = between(0, 1, default=0.005)
    num_warm_up: int = between(0, 1_000_000, default=32)
    alarm: float = between(0.01, 10, default=0.2)


@dataclass(frozen=True, slots=True)
class VelocitySample:
    """A busy instance's passes: what they released, and what the profile says they would have.

    ``stage``: ``prefill`` or ``decode``; both velocities in tokens/s.
    """

    worker_id: str
    stage: str
    measured_tokens_per_s: float
    profiled_tokens_per_s: float
    num_passes: int = 1


def velocity_sample(sample: WorkSample, pass_time: PassTime) -> VelocitySample:
    """The tokens of these passes over the time that they took, and that the model gives them.

    What is no work is no velocity: 0.
    """
    work = sample.work
    linear = (work.prefill_tokens, work.prefill_context, work.batch, work.kv_tokens)
    expected = pass_time.seconds(*linear) + (work.num_passes - 1) * pass_time.base
    num_tokens = work.prefill_tokens + work.batch
    measured = num_tokens / work.seconds if work.seconds > 0 else 0.0
    profiled = num_tokens / expected if expected > 0 else 0.0
    return VelocitySample(sample.worker_id, sample.stage, measured, profiled, work.num_passes)


class LearnedVelocity:
    """A factor a stage, by which its profiled velocities are off; 1 before any pass.

    A sample that is no velocity is dropped and counted; one pass counts as at most 4 times or a
    quarter of the profile.
    """

    def __init__(self, params: LearnedParams | None = None) -> None:
        self._params = params or LearnedParams()
        self._factors: dict[str, float] = {}
        self._num_passes: dict[str, int] = {}
        self.num_dropped = 0

    def observe(self, sample: VelocitySample) -> None:
        """Take in passes of a busy instance."""
        measured, profiled = sample.measured_tokens_per_s, sample.profiled_tokens_per_s
        if not (isfinite(measured) and measured > 0 and isfinite(profiled) and profiled > 0):
            self.num_dropped += 1
            return
        if self._count(sample.worker_id, sample.num_passes) < self._params.num_warm_up:
            return
        ratio = min(max(measured / profiled, 1 / _MOST_FACTOR), _MOST_FACTOR)
        factor = self.factor(sample.stage)
        weight = 1 - (1 - self._params.weight) ** sample.num_passes
        self._factors[sample.stage] = factor + weight * (ratio - factor)

    def _count(self, worker_id: str, num_passes: int) -> int:
        """Passes of the worker before these."""
        count = self._num_passes.pop(worker_id, 0)
        self._num_passes[worker_id] = (
            count + num_passes
        )  # at the end: the longest silent goes first
        if len(self._num_passes) > _MOST_WORKERS:
            del self._num_passes[next(iter(self._num_passes))]
        return count

    def factor(self, stage: str) -> float:
        """Return the factor for the stage's profiled velocities."""
        return self._factors.get(stage, 1.0)

    def drifts(self) -> list[str]:
        """Stages that are off by more than the alarm, for the log."""
        return [
            f"{stage} velocity is {factor - 1:+.0%} off its profile: measure it again"
            for stage, factor in sorted(self._factors.items())
            if abs(factor - 1) > self._params.alarm
        ]
