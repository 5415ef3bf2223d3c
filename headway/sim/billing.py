"""The time for which an instance's GPUs are paid."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class PaidTime:
    """From an instance's order to its end, seconds."""

    num_gpus: int
    began_at: float
    ended_at: float = inf

    def gpu_seconds(self, until: float) -> float:
        """Return the GPU-seconds up to an instant."""
        return self.num_gpus * max(0.0, min(self.ended_at, until) - self.began_at)
