"""Held-out loads, live and predicted: errors by case, split into level and structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from headway.workload.traces import TraceRow
from planning.profile.calibration import Calibration
from planning.profile.cases import TOPOLOGIES, HeldOutCase
from planning.profile.figures import TARGETS, LatencyLimits, errors, intervals
from planning.profile.predict import Prediction, predict
from planning.profile.sharing import LiveRun, level

MOST_MOVED = 0.10
"""The share by which the level may have moved: beyond it, a run compares nothing."""


def has_moved(level: float) -> bool:
    """Return whether a machine was faster or slower than while it was measured."""
    return abs(level - 1.0) > MOST_MOVED


@dataclass(frozen=True, slots=True)
class Repeat:
    """Errors of one repeat, signed shares of the live figure; intervals are of 90 %.

    ``total``: of the prediction. ``structure``: of one whose passes all took ``level`` times as
    long, so that only the rest is left; of a void run it is the total. ``attainment``: in points.
    ``outside``: the share of passes beyond those that the profile was fitted to.
    """

    level: float
    total: dict[str, float]
    structure: dict[str, float]
    interval: dict[str, tuple[float, float]]
    attainment: float
    moves: float
    num_moves: int
    gpu_seconds: float
    outside: float
    num_failed: int

    @property
    def is_void(self) -> bool:
        """True if the machine was faster or slower than while it was measured."""
        return has_moved(self.level)


@dataclass(frozen=True, slots=True)
class CaseReport:
    """A case: its repeats, and by how much they miss each other (the floor)."""

    name: str
    rate: float
    repeats: Sequence[Repeat]
    floor: dict[str, list[float]]

    @property
    def valid(self) -> list[Repeat]:
        """Repeats that are not void."""
        return [repeat for repeat in self.repeats if not repeat.is_void]

    def structure(self, name: str) -> list[float]:
        """Return the errors of structure of one figure, without signs, of valid repeats."""
        return [abs(each.structure[name]) for each in self.valid if name in each.structure]


def examine(
    case: HeldOutCase,
    rate: float,
    calibration: Calibration,
    rows: Sequence[TraceRow],
    runs: Sequence[LiveRun],
    slo: LatencyLimits,
) -> CaseReport:
    """Compare a case's live runs with their prediction, and with each other."""
    topology = TOPOLOGIES[case.topology]
    predicted = predict(calibration, case.preset, topology, rows)
    repeats = []
    for run in runs:
        run_level = level(run, calibration.profile.pass_time, calibration.hops)
        at_level = predicted
        if not has_moved(run_level):
            at_level = predict(calibration, case.preset, topology, rows, level=run_level)
        repeats.append(_repeat(run, run_level, predicted, at_level, calibration, slo))
    return CaseReport(case.name, rate, repeats, _floor(runs))


def _repeat(
    run: LiveRun,
    run_level: float,
    predicted: Prediction,
    at_level: Prediction,
    calibration: Calibration,
    slo: LatencyLimits,
) -> Repeat:
    seen = run.load.seen
    kept = sum(slo.attainment(load) for load in at_level.loads) / len(at_level.loads)
    ended_at = max((each.ended_at for each in seen if each is not None), default=0.0)
    gpu_seconds = len(run.records) * ended_at
    passes = [each for record in run.records for each in record.passes]
    return Repeat(
        level=run_level,
        total=errors(seen, predicted.loads),
        structure=errors(seen, at_level.loads),
        interval=intervals(seen, at_level.loads),
        attainment=100 * (kept - slo.attainment(seen)),
        moves=at_level.num_moves - run.load.num_moves,
        num_moves=run.load.num_moves,
        gpu_seconds=at_level.gpu_seconds / gpu_seconds - 1.0 if gpu_seconds else 0.0,
        outside=calibration.fitted.share_outside(passes),
        num_failed=sum(each is None for each in seen),
    )


def _floor(runs: Sequence[LiveRun]) -> dict[str, list[float]]:
    """Return by how much each live run is missed by another of the same load, without signs."""
    misses: dict[str, list[float]] = {name: [] for name in TARGETS}
    for one, other in combinations(runs, 2):
        for name, error in errors(one.load.seen, [other.load.seen]).items():
            misses[name].append(abs(error))
    return misses


@dataclass(frozen=True, slots=True)
class Overall:
    """A figure over all cases: its target, and errors as shares, without signs; None for none."""

    name: str
    target: float
    structure: float | None
    worst: float | None
    total: float | None
    floor: float | None
    worst_floor: float | None


def overall(reports: Sequence[CaseReport]) -> list[Overall]:
    """Return the medians over cases of what each case has as its median, and the worst repeat."""
    rows = []
    for name, target in TARGETS.items():
        structure = [each.structure(name) for each in reports]
        total = [
            [abs(repeat.total[name]) for repeat in each.valid if name in repeat.total]
            for each in reports
        ]
        floor = [each.floor[name] for each in reports]
        rows.append(
            Overall(
                *(name, target, _middle(structure), _most(structure)),
                *(_middle(total), _middle(floor), _most(floor)),
            )
        )
    return rows


def _middle(values: Sequence[Sequence[float]]) -> float | None:
    medians = [median(each) for each in values if each]
    return median(medians) if medians else None


def _most(values: Sequence[Sequence[float]]) -> float | None:
    return max((value for each in values for value in each), default=None)
