"""How long instances take from their order to ready: the last ones tell of the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from headway.errors import require_between
from headway.policies.scaling.protocol import StartUp

MOST_SECONDS = 86_400.0
MAX_STARTS = 1024
NUM_COUNTED = 8
"""Of each kind: a machine's start-ups change with what else runs there."""


@dataclass(frozen=True, slots=True)
class InstanceStart:
    """An instance is ready: ``seconds`` after its order, ``warm`` where it had stood by."""

    worker_id: str
    role: str
    seconds: float
    warm: bool = False

    def __post_init__(self) -> None:
        require_between("seconds", self.seconds, 0, MOST_SECONDS)


@dataclass(frozen=True, slots=True)
class StartsReport:
    """Instances that have come since the last report, and how many stand by, loaded and warm."""

    starts: Sequence[InstanceStart] = ()
    num_standby: int = 0

    def __post_init__(self) -> None:
        require_between("the number of starts", len(self.starts), 0, MAX_STARTS)
        require_between("num_standby", self.num_standby, 0, 1 << 20)


class StartUps:
    """Medians of the last starts, cold and warm ones apart."""

    def __init__(self) -> None:
        self._num_standby = 0
        self._seconds: dict[bool, deque[float]] = {
            warm: deque(maxlen=NUM_COUNTED) for warm in (False, True)
        }

    def take(self, report: StartsReport) -> None:
        """What has come, and what stands by now."""
        self._num_standby = report.num_standby
        for start in report.starts:
            self._seconds[start.warm].append(start.seconds)

    def next(self) -> StartUp | None:
        """The next instance's: a warm one's while one stands by; None where none was measured."""
        known = self._seconds[bool(self._num_standby)]
        if not known:
            return None
        return StartUp(median(known), len(known), self._num_standby)
