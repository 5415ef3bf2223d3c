"""Passes of one step each, as live. The simulator's may have many (``headway/sim/leaps.py``)."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from headway.core.worker.batch import ClockedBatch
from headway.core.worker.events import WorkerEvent
from headway.core.worker.flight import Flight, Share
from headway.forward_pass import Leap, PassItem, PassResult


class PlannedPass(NamedTuple):
    """A pass as planned: ``items`` for the backend; ``in_pass``, requests to look at, for us."""

    items: abc.Sequence[PassItem]
    in_pass: list[Share]
    leap: Leap | None = None
    clock: ClockedBatch | None = None


class StepPasses:
    """How planned requests become passes: each is planned for, and looked at when it ends."""

    def prepare(self, event: WorkerEvent, flights: abc.Sequence[Flight]) -> None:
        """Note an event, before it is handled, that may concern requests without a plan."""

    def go_on(self, until: float, now: float) -> PlannedPass | None:
        """Return the next pass of the same batch; None where requests are to be planned for."""
        return None

    def begin(self, in_pass: list[Share], until: float, now: float) -> PlannedPass:
        """Return the pass of these requests; nothing is due before ``until``."""
        return PlannedPass([item for item, _ in in_pass], in_pass)

    def complete(self, flight: Flight, result: PassResult, now: float) -> list[Share]:
        """Note a pass that has ended; return the requests to look at, in order."""
        return flight.in_pass

    def settle(self, step_time: float | None) -> None:
        """Note that those requests have been looked at; ``step_time``: s, if it computed."""
