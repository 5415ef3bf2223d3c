"""Costs of the hops of a request's way (plain Python: a compiled class has no bounds)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.bounds import Bounded, between

MESSAGE = 0.0002  # seconds of a message within a data centre

REQUEST_WINDOW = 0.2
"""Seconds over which requests count as ``requests_per_s``."""


class Beside(NamedTuple):
    """A pass, and what else its host does: instances that compute, itself included, and requests.

    ``has_prompts``: it computes some. ``requests_per_s``: over the last ``REQUEST_WINDOW``.
    """

    has_prompts: bool
    num_busy: int
    requests_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HopCosts(Bounded):
    """Seconds of every hop of a request's way, one way, and what a common host costs instances.

    ``gateway``: from the client into the gateway's core, with tokenising. ``submit``: between
    gateway and scheduler. ``dispatch``: the scheduler's orders to a worker. ``report``: a
    worker's messages to the scheduler. ``token``: from a pass's end to the client.

    ``cores``: of the host that all instances share, 0 for a host each. There a pass takes longer,
    by shares of its time: for each other instance that computes meanwhile on a core of its own
    (``…_beside``), for each that there is no core for (``…_crowded``; None: they share the cores
    alike), and for each request that comes in a second (``per_request``). A pass with prompts
    (``prefill_…``) loses more: it is long, and a host lets what is short go first. A message
    other than tokens waits ``wait`` seconds for each instance that computes and leaves no core
    free.
    """

    gateway: float = between(0, 60, default=0.0)
    submit: float = between(0, 60, default=MESSAGE)
    dispatch: float = between(0, 60, default=MESSAGE)
    report: float = between(0, 60, default=MESSAGE)
    token: float = between(0, 60, default=0.0)
    cores: int = between(0, 4096, default=0)
    decode_beside: float = between(0, 10, default=0.0)
    decode_crowded: float | None = between(0, 10, default=None)
    prefill_beside: float = between(0, 10, default=0.0)
    prefill_crowded: float | None = between(0, 10, default=None)
    per_request: float = between(0, 60, default=0.0)
    wait: float = between(0, 60, default=0.0)

    def stretch(self, beside: Beside) -> float:
        """Return how much longer a pass takes on the host that instances share."""
        if not self.cores:
            return 1.0
        apart, crowded = (self.decode_beside, self.decode_crowded)
        if beside.has_prompts:
            apart, crowded = (self.prefill_beside, self.prefill_crowded)
        if crowded is None:
            crowded = 1.0 / self.cores
        num_apart = min(beside.num_busy, self.cores) - 1
        num_crowded = max(0, beside.num_busy - self.cores)
        requests = self.per_request * beside.requests_per_s
        return 1.0 + apart * num_apart + crowded * num_crowded + requests

    def num_late(self, num_busy: int) -> int:
        """Return for how many of the instances that compute a message waits."""
        return max(0, num_busy + 1 - self.cores) if self.cores else 0
