"""A claim of a paper beside what the simulator finds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Claim:
    """One row. ``baseline``, ``ours`` and ``spread`` have the unit that ``scenario`` names.

    ``spread``: the standard deviation of ``ours`` over the seeds.
    """

    paper: str
    claim: str
    scenario: str
    paper_value: str
    baseline: float
    ours: float
    spread: float
    seeds: int
    holds: bool
    note: str = ""

    def packed(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """A figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def change(baseline: Sequence[float], ours: Sequence[float]) -> Sample:
    """Relative change seed by seed, 0.1 for 10 % more."""
    return Sample(tuple(o / b - 1 for b, o in zip(baseline, ours, strict=True)))


def run_all(work: Callable[[T], R], jobs: Iterable[T], num_processes: int) -> list[R]:
    """``work`` on every job, in order; in this process where one is enough."""
    listed = list(jobs)
    if num_processes <= 1:
        return [work(job) for job in listed]
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, listed))
