"""Settings of the autoscaler's core."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.autoscaler.budget import Budget


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """Limits and times of the autoscaler's core, seconds; live and simulated ones are equal.

    ``interval``: between decisions. ``staleness``: for which a report counts from its arrival.
    ``budget``: of all instances together. ``model``: whose reports count, "" for all together.
    """

    interval: float = 1.0
    staleness: float = 5.0
    budget: Budget = field(default_factory=Budget)
    model: str = ""
