"""Candidates under the same requests, over views, and given up once hopeless.

Where memory runs short and the order of batching says who yields, a candidate runs on the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headway.sim.clients import SimRequest
from headway.sim.experiment import simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.sessions import SessionLoad
from headway.sim.spec import ClusterSpec
from headway.sim.views.order import MemoryShortError
from headway.sim.views.run import simulate_views
from planning.plan.candidate import Goal, Sizing
from planning.plan.load import Load, faster, num_requests

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
        self.num_ended += 1
        limit = self.goal.missed(record)
        if limit:
            self.missed[limit] += 1
            if self.missed.total() > self.most:
                raise _HopelessError


def _say_nothing(what: str) -> None:
    """Show no progress."""


@dataclass(slots=True)
class Trial:
    """Runs candidates over the same requests; a repeat costs nothing."""

    load: Load
    goal: Goal
    network: NetworkParams
    tell: Callable[[str], None] = _say_nothing
    """Told what is tried before each run."""
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
        outcome = self.run(candidate)
        return outcome.is_whole and outcome.attainment >= self.goal.attainment

    @property
    def outcomes(self) -> Iterable[Outcome]:
        """All results so far."""
        return self._known.values()

    def faster(self, factor: float) -> Trial:
        """Return the same requests in 1/``factor`` of the time."""
        return Trial(faster(self.load, factor), self.goal, self.network, self.tell)

    def closest(self) -> Outcome | None:
        """Return the whole result that comes nearest to the goal; None if nothing was tried.

        Of those that were given up, those count that came furthest.
        """
        order = sorted(self.outcomes, key=lambda o: (-o.attainment, -o.num_ended))
        nearest = [self.run(each.candidate, whole=True) for each in order[:_NEAREST]]
        return max(nearest, key=lambda each: each.attainment, default=None)

    def _run(self, candidate: Sizing, whole: bool) -> Outcome:
        self.tell(candidate.name)
        spec = candidate.spec(self.network)
        num_asked = num_requests(self.load)
        most = num_asked if whole else self._most_missed
        seen = _Seen(self.goal, most)
        self.num_runs += 1
        is_whole = True
        try:
            if isinstance(self.load, SessionLoad) or not self._run_views(spec, self.load, seen):
                self.num_by_cores += 1
                seen = _Seen(self.goal, most)
                simulate(spec, self.load, ended=seen.ended)
        except _HopelessError:
            is_whole = False
        num_lost = num_asked - seen.num_ended if is_whole else 0  # behind a turn that was lost
        share = 1 - (seen.missed.total() + num_lost) / num_asked
        return Outcome(candidate, share, seen.missed, is_whole, seen.num_ended)

    def _run_views(self, spec: ClusterSpec, requests: Sequence[SimRequest], seen: _Seen) -> bool:
        """Run over views; False where they do not have who yields memory, and the cores do."""
        try:
            simulate_views(spec, requests, ended=seen.ended)
        except MemoryShortError:
            return False
        return True

    @property
    def _most_missed(self) -> int:
        return int((1 - self.goal.attainment) * num_requests(self.load) + 1e-9)
