"""A budget for all instances together, and targets cut to fit it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.errors import invalid, require_between
from headway.policies.scaling.fixed import MAX_INSTANCES
from headway.policies.scaling.protocol import Targets


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit on the instances of all roles together (0: none), and the minima of both pools."""

    num_instances: int = 0
    min_prefill: int = 1
    min_decode: int = 1

    def __post_init__(self) -> None:
        for name in ("num_instances", "min_prefill", "min_decode"):
            require_between(name, getattr(self, name), 0, MAX_INSTANCES)
        least = self.min_prefill + self.min_decode
        if 0 < self.num_instances < least:
            raise invalid("budget", self.num_instances, f"0 or at least the minima, {least}")

    def fit(self, targets: Targets) -> Targets:
        """Cut targets to the budget; the pools share what convertible and unified roles leave.

        The pools share it in proportion to their targets, neither below its minimum. Without
        pools, unified instances are cut.
        """
        wanted = targets.num_prefill + targets.num_decode
        fixed = targets.num_convertible + targets.num_unified
        if not self.num_instances or wanted + fixed <= self.num_instances:
            return targets
        if not wanted:
            return replace(
                targets,
                num_unified=max(0, self.num_instances - targets.num_convertible),
                reason=self._cut(targets, fixed),
            )
        left = max(self.num_instances - fixed, self.min_prefill + self.min_decode)
        left = min(left, wanted)
        num_prefill = max(
            left * targets.num_prefill // wanted,
            min(self.min_prefill, targets.num_prefill),
            left - targets.num_decode,
        )
        num_prefill = min(num_prefill, left - min(self.min_decode, targets.num_decode))
        return replace(
            targets,
            num_prefill=num_prefill,
            num_decode=left - num_prefill,
            reason=self._cut(targets, wanted + fixed),
        )

    def _cut(self, targets: Targets, wanted: int) -> str:
        return f"{targets.reason}; cut from {wanted} to the budget of {self.num_instances}"
