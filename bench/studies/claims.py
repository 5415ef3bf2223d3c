"""A claim of a paper beside what the simulator finds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PerSeed:
    """A figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the table; ``before`` and ``after`` have the unit that ``scenario`` names."""

    paper: str
    claim: str
    scenario: str
    paper_value: str
    before: PerSeed
    after: PerSeed
    holds: bool
    note: str = ""
    differences: PerSeed | None = None  # their spread is shown instead of that of ``after``

    @property
    def baseline(self) -> float:
        """Mean of the baseline."""
        return self.before.mean

    @property
    def ours(self) -> float:
        """Our mean."""
        return self.after.mean

    @property
    def spread(self) -> float:
        """Standard deviation of ours over the seeds."""
        return (self.differences or self.after).spread

    def packed(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "paper": self.paper,
            "claim": self.claim,
            "scenario": self.scenario,
            "paper_value": self.paper_value,
            "baseline": self.baseline,
            "ours": self.ours,
            "spread": self.spread,
            "seeds": len(self.after.values),
            "holds": self.holds,
            "note": self.note,
        }


def change(baseline: Sequence[float], ours: Sequence[float]) -> PerSeed:
    """Return the relative change seed by seed, 0.1 for 10 % more."""
    return PerSeed(tuple(o / b - 1 for b, o in zip(baseline, ours, strict=True)))


def run_all(work: Callable[[T], R], jobs: Iterable[T], num_processes: int) -> list[R]:
    """Return what ``work`` makes of every job, in order; one process is this one."""
    return list(run_each(work, jobs, num_processes))


def run_each(work: Callable[[T], R], jobs: Iterable[T], num_processes: int) -> Iterator[R]:
    """Yield what ``work`` makes of every job, in order and as soon as it is known."""
    if num_processes <= 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, jobs)
