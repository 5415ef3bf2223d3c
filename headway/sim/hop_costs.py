"""Costs of the hops of a request's way (plain Python: a compiled class has no bounds)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.bounds import Bounded, between

MESSAGE = 0.0002  # seconds of a message within a data centre


@dataclass(frozen=True, slots=True)
class HopCosts(Bounded):
    """Seconds of every hop of a request's way, one way, and the cores that its hosts share.

    ``gateway``: from the client into the gateway's core, with tokenising. ``submit``: between
    gateway and scheduler. ``dispatch``: the scheduler's orders to a worker. ``report``: a
    worker's messages to the scheduler. ``token``: from a pass's end to the client. ``cores``:
    passes that the instances' common host computes at once without loss, 0 for a host each.
    """

    gateway: float = between(0, 60, default=0.0)
    submit: float = between(0, 60, default=MESSAGE)
    dispatch: float = between(0, 60, default=MESSAGE)
    report: float = between(0, 60, default=MESSAGE)
    token: float = between(0, 60, default=0.0)
    cores: int = between(0, 4096, default=0)

    def stretch(self, num_busy: int) -> float:
        """Return how much longer a pass takes while ``num_busy`` instances compute."""
        return max(1.0, num_busy / self.cores) if self.cores else 1.0
