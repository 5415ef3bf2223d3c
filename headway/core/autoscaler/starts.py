"""Start times of instances, from order to ready; the last ones predict the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from headway.errors import require_between
from headway.policies.scaling.protocol import StartUp

MOST_SECONDS = 86_400.0
MAX_STARTS = 1024
NUM_COUNTED = 8
"""Starts counted of each kind: start times change with the load of a machine."""


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """A start that took ``seconds`` from its order; ``warm`` if the instance had stood by."""

    worker_id: str
    role: str
    seconds: float
    warm: bool = False

    def __post_init__(self) -> None:
        require_between("seconds", self.seconds, 0, MOST_SECONDS)


@dataclass(frozen=True, slots=True)
class StartsReport:
    """Instances that became ready since the last report, and the number of standbys."""

    starts: Sequence[InstanceStart] = ()
    num_standby: int = 0

    def __post_init__(self) -> None:
        require_between("the number of starts", len(self.starts), 0, MAX_STARTS)
        require_between("num_standby", self.num_standby, 0, 1 << 20)


class SeenStarts:
    """Starts inferred from the fleet: the instance ordered first counts as ready first.

    For actuators that cannot measure starts. It is as precise as the reports of orders and fleets.
    """

    def __init__(self) -> None:
        self._num_ordered: dict[str, int] = {}
        self._num_ready: dict[str, int] = {}
        self._ordered_at: dict[str, deque[float]] = {}

    def ordered(self, role: str, number: int, *, now: float) -> None:
        """Take the ordered number of a role; a withdrawn order is the newest one."""
        more = number - self._num_ordered.get(role, number)
        self._num_ordered[role] = number
        waiting = self._ordered_at.setdefault(role, deque(maxlen=MAX_STARTS))
        waiting.extend([now] * min(more, MAX_STARTS))
        for _ in range(min(-more, len(waiting))):
            waiting.pop()

    def ready(self, role: str, number: int, *, now: float) -> list[InstanceStart]:
        """Take the number of a role that serve; return the starts that have ended."""
        more = number - self._num_ready.get(role, number)
        self._num_ready[role] = number
        waiting = self._ordered_at.setdefault(role, deque(maxlen=MAX_STARTS))
        taken = [waiting.popleft() for _ in range(min(more, len(waiting)))]
        return [InstanceStart("", role, min(now - at, MOST_SECONDS)) for at in taken]


class StartUps:
    """Medians of the last starts, cold and warm ones apart.

    Measured by the actuator if it can do so, else inferred from the fleet.
    """

    def __init__(self) -> None:
        self._seen: SeenStarts | None = SeenStarts()
        self._num_standby = 0
        self._seconds: dict[bool, deque[float]] = {
            warm: deque(maxlen=NUM_COUNTED) for warm in (False, True)
        }

    def take(self, report: StartsReport) -> None:
        """Take measured starts, and the current number of standbys."""
        self._seen = None
        self._num_standby = report.num_standby
        self._add(report.starts)

    def ordered(self, num_by_role: Mapping[str, int], *, now: float) -> None:
        """Take the ordered numbers of instances."""
        for role, number in num_by_role.items():
            if self._seen is not None:
                self._seen.ordered(role, number, now=now)

    def ready(self, num_by_role: Mapping[str, int], *, now: float) -> None:
        """Take the numbers of serving instances."""
        for role, number in num_by_role.items():
            if self._seen is not None:
                self._add(self._seen.ready(role, number, now=now))

    def _add(self, starts: Iterable[InstanceStart]) -> None:
        for start in starts:
            self._seconds[start.warm].append(start.seconds)

    def next(self) -> StartUp | None:
        """Return the expected next start: warm if there is a standby; None if unknown."""
        known = self._seconds[bool(self._num_standby)]
        if not known:
            return None
        return StartUp(median(known), len(known), self._num_standby)
