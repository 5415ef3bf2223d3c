"""A claim of a paper beside what the simulator finds."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from results.interval import LEAST_RUNS, half_interval
from results.progress import counted

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

    @property
    def noise(self) -> float:
        """Half of the 95 % interval of the mean; infinite where the seeds do not tell it."""
        return half_interval(self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    """The change that a claim asks for: at most ``value``, or at least that.

    A share of the baseline (-0.35: 35 % less), or ``by_points`` the figure's own unit.
    """

    value: float
    at_least: bool = False
    by_points: bool = False

    def changes(self, before: PerSeed, after: PerSeed) -> PerSeed:
        """Return the changes seed by seed, from one system to another."""
        if not self.by_points:
            return change(before.values, after.values)
        return PerSeed(tuple(a - b for b, a in zip(before.values, after.values, strict=True)))

    def judge(self, changes: PerSeed) -> bool | None:
        """Return whether the mean passes; None where it is no further from the bar than its noise.

        A change of 0 in every seed passes a bar of -1 %, and is open against one of 0.
        """
        away = changes.mean - self.value if self.at_least else self.value - changes.mean
        return None if abs(away) <= changes.noise else away > 0

    def limit_text(self, changes: PerSeed) -> str:
        """Return the bar and the noise for the table."""
        limit = "at least" if self.at_least else "at most"
        is_known = math.isfinite(changes.noise)
        noise = self.change_text(changes.noise).lstrip("+") if is_known else "unknown"
        return f"{limit} {self.change_text(self.value)} (noise {noise})"

    def change_text(self, value: float) -> str:
        """Return a change for people."""
        return f"{value:+.3g}" if self.by_points else f"{value:+.1%}"


def unanimous(verdicts: Sequence[bool]) -> bool | None:
    """Return every seed's verdict; None where they differ, or are too few to say."""
    return verdicts[0] if len(verdicts) >= LEAST_RUNS and len({*verdicts}) == 1 else None


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the table; ``before`` and ``after`` have the unit that ``scenario`` names.

    ``holds``: None where the noise over seeds hides it, or is unknown. ``against``: the system
    that ``before`` is of. ``asked``: the bar, and the noise that it allows for.
    """

    paper: str
    claim: str
    scenario: str
    paper_value: str
    before: PerSeed
    after: PerSeed
    holds: bool | None
    note: str = ""
    against: str = ""
    asked: str = ""

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
        return self.after.spread

    @property
    def verdict(self) -> str:
        """``yes``, ``no``, or ``open``."""
        return {True: "yes", False: "no", None: "open"}[self.holds]

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
            "against": self.against,
            "asked": self.asked,
        }


def change(baseline: Sequence[float], ours: Sequence[float]) -> PerSeed:
    """Return the relative change seed by seed, 0.1 for 10 % more; more than nothing is 1."""
    pairs = zip(baseline, ours, strict=True)
    return PerSeed(tuple(o / b - 1 if b else float(o > 0) for b, o in pairs))


def run_all(work: Callable[[T], R], jobs: Iterable[T], num_processes: int) -> list[R]:
    """Return what ``work`` makes of every job, in order; one process is this one."""
    return list(run_each(work, jobs, num_processes))


def run_each(work: Callable[[T], R], jobs: Iterable[T], num_processes: int) -> Iterator[R]:
    """Yield what ``work`` makes of every job, in order and as soon as it is known."""
    every = list(jobs)
    names = [_name_of(job) for job in every]
    if num_processes <= 1:
        yield from counted(map(partial(_and_collect, work), every), "runs", names)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from counted(pool.map(partial(_and_collect, work), every), "runs", names)


def _name_of(job: object) -> str:
    parts = job if isinstance(job, tuple) else (job,)
    return ", ".join(str(part) for part in parts if isinstance(part, str | int | float) and part)


def _and_collect(work: Callable[[T], R], job: T) -> R:
    """Work, and free the run's cycles: meanwhile they are searched for seldom."""
    gc.freeze()  # only what is new is searched
    try:
        return work(job)
    finally:
        gc.collect()
        gc.unfreeze()
