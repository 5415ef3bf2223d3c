"""N_limit: what happens when requests wait for too many cycles (Algorithm 2, phase 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headway.bounds import Bounded, at_least
from headway.errors import invalid


class FlowLevel(Enum):
    """The treatment of an arriving request."""

    OPEN = "open"
    THROTTLED = "throttled"  # it enters the window more slowly than others leave it
    REJECTING = "rejecting"  # it is refused with a retry-after


@dataclass(frozen=True, slots=True)
class FlowControl(Bounded):
    """Throttles when a request has waited more than ``num_cycles``; rejects at twice as many.

    ``throttle``: requests that enter the throttled window for each one that leaves it, [0, 1).
    """

    num_cycles: int = at_least(1, default=500, name="flow_control_cycles")
    reject_factor: float = at_least(1, default=2.0)
    throttle: float = 0.5

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if not 0 <= self.throttle < 1:
            raise invalid("throttle", self.throttle, "from 0 to below 1")

    def level(self, longest_wait: int) -> FlowLevel:
        """Return the level; ``longest_wait``: cycles that the oldest request was left over."""
        if longest_wait > self.reject_factor * self.num_cycles:
            return FlowLevel.REJECTING
        return FlowLevel.THROTTLED if longest_wait > self.num_cycles else FlowLevel.OPEN
