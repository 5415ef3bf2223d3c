"""Candidates under the same requests, over views, and given up once hopeless.

Where memory runs short and the order of batching says who yields, a candidate runs on the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from bench.plan.candidate import Goal, Sizing
from headway.sim.clients import SimRequest
from headway.sim.experiment import simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.views.order import MemoryShortError
from headway.sim.views.run import simulate_views

_NEAREST = 3
"""Candidates that are run to their end where none keeps the goal."""


class _HopelessError(Exception):
    """Too many requests have missed their limits already."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A candidate's result: the share that kept the limits, at most that where it was given up.

    ``missed``: requests by the first limit that they missed. ``num_ended``: requests that had ended
    when it was given up; the more, the nearer it came.
    """

    candidate: Sizing
    attainment: float
    missed: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True
    num_ended: int = 0


@dataclass(slots=True)
class _Seen:
    """Promises that ended requests missed; HopelessError when they are more than ``most``."""

    goal: Goal
    most: int
    missed: Counter[str] = field(default_factory=Counter)
    num_ended: int = 0

    def ended(self, record: Record) -> None:
        """Judge a request."""
        self.num_ended += 1
        limit = self.goal.missed(record)
        if limit:
            self.missed[limit] += 1
            if self.missed.total() > self.most:
                raise _HopelessError


@dataclass(slots=True)
class Trial:
    """Runs candidates over the same requests; a repeat costs nothing."""

    requests: Sequence[SimRequest]
    goal: Goal
    network: NetworkParams
    num_runs: int = 0
    num_by_cores: int = 0
    """Runs that needed the cores."""
    _known: dict[tuple[Sizing, str], Outcome] = field(default_factory=dict)

    def run(self, candidate: Sizing, *, whole: bool = False) -> Outcome:
        """Return its result; ``whole``: to the last request, however many have missed."""
        key = candidate, ",".join(candidate.settings)
        known = self._known.get(key)
        if known is None or (whole and not known.is_whole):
            known = self._known[key] = self._run(candidate, whole)
        return known

    def keeps(self, candidate: Sizing) -> bool:
        """Return whether enough requests keep the limits."""
        found = self.run(candidate)
        return found.is_whole and found.attainment >= self.goal.attainment

    @property
    def outcomes(self) -> Iterable[Outcome]:
        """All results so far."""
        return self._known.values()

    def faster(self, factor: float) -> Trial:
        """Return the same requests in 1/``factor`` of the time."""
        requests = [replace(r, arrival_at=r.arrival_at / factor) for r in self.requests]
        return Trial(requests, self.goal, self.network)

    def closest(self) -> Outcome | None:
        """Return the whole result that comes nearest to the goal; None if nothing was tried.

        Of those that were given up, those count that came furthest.
        """
        order = sorted(self.outcomes, key=lambda o: (-o.attainment, -o.num_ended))
        nearest = [self.run(each.candidate, whole=True) for each in order[:_NEAREST]]
        return max(nearest, key=lambda each: each.attainment, default=None)

    def _run(self, candidate: Sizing, whole: bool) -> Outcome:
        spec = candidate.spec(self.network)
        most = len(self.requests) if whole else self._most_missed
        seen = _Seen(self.goal, most)
        self.num_runs += 1
        is_whole = True
        try:
            try:
                simulate_views(spec, self.requests, ended=seen.ended)
            except MemoryShortError:  # views do not have who yields, the cores do
                self.num_by_cores += 1
                seen = _Seen(self.goal, most)
                simulate(spec, iter(self.requests), ended=seen.ended)
        except _HopelessError:
            is_whole = False
        share = 1 - seen.missed.total() / len(self.requests)
        return Outcome(candidate, share, seen.missed, is_whole, seen.num_ended)

    @property
    def _most_missed(self) -> int:
        return int((1 - self.goal.attainment) * len(self.requests) + 1e-9)
