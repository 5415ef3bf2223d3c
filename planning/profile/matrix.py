"""Live runs of a calibration: those that it learns from, and the matrix that it predicts.

Every run has a cluster of its own and a folder with what came of it. A folder that has that
already is not run again, so an interrupted matrix goes on where it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headway.errors import Code, HeadwayError
from headway.workload.traces import TraceRow
from planning.profile.calibration import Calibration
from planning.profile.cases import KINDS, TOPOLOGIES, HeldOutCase
from planning.profile.check import CaseReport, examine, has_moved
from planning.profile.live import (
    PASSES,
    SPANS,
    LiveDeployment,
    LiveModel,
    keep,
    kept,
    note_asked,
    run_live,
)
from planning.profile.loads import (
    SPREAD,
    TOGETHER,
    Mix,
    Part,
    at_once,
    drawn,
    one_by_one,
    poisson,
)
from planning.profile.model import read_records, slower
from planning.profile.predict import limits
from planning.profile.sharing import LiveRun, level, measure_sharing, measure_wait
from planning.profile.spans import Span, measure_hops, spans_of
from results.output import num_cores
from services.local.options import WorkerCounts
from services.runtime.span_record import read_spans

_PLAIN = "vllm-like"
_LONE_PAUSE, _NUM_LONE = 0.5, 40
_NUM_CROWD = 150
START_SECONDS = 12.0
"""About what it takes to start a cluster, to warm it up and to stop it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Learnt:
    """A calibration, and the levels of the loads that it comes from: alone, then side by side."""

    calibration: Calibration
    levels: Sequence[float]

    @property
    def has_moved(self) -> bool:
        """True if the machine was not as fast for one load as for the others."""
        return any(map(has_moved, self.levels))


def learn(
    served: LiveModel,
    folder: Path,
    seed: int,
    name: str = "measured",
    say: Say = lambda line: None,
    *,
    parts: Sequence[Part] = SPREAD,
    side_by_side: Sequence[Part] = TOGETHER,
    num_lone: int = _NUM_LONE,
) -> Learnt:
    """Measure hops by requests that are alone, and pass times by a load that is spread out.

    A load on workers side by side then shows how much they hold each other up.
    """
    single, split = WorkerCounts(0, 0, unified=1), WorkerCounts(1, 1)
    for_hops, several = single, (WorkerCounts(0, 0, unified=2), WorkerCounts(0, 0, unified=3))
    if served.engine.can_serve(split):
        for_hops, several = split, (split, WorkerCounts(1, 2))
    say("requests that are alone")
    lone = _run(
        LiveDeployment(served, _PLAIN, for_hops),
        one_by_one(_LONE_PAUSE, num_lone, seed),
        folder / "lone",
        spans=True,
    )
    say("a load over rates and mixes, on one worker")
    run = _run(LiveDeployment(served, _PLAIN, single), drawn(parts, seed), folder / "learning")
    rows, together = drawn(side_by_side, seed), list[tuple[LiveRun, Sequence[Span]]]()
    for number, each in enumerate(several, start=1):
        say(f"a load on {sum(each.by_role().values())} workers side by side")
        kept_in = folder / f"together-{number}"
        beside = _run(LiveDeployment(served, _PLAIN, each), rows, kept_in, spans=True)
        together.append((beside, spans_of(read_spans(kept_in / SPANS), beside.load.sent)))
    measured = measure_hops(read_spans(folder / "lone" / SPANS), lone.load.sent, num_cores())
    calibration = Calibration.of(run.records, measured, name, served, run.load.start_up)
    loads = [run, *(each for each, _ in together)]
    alone, hops = measure_sharing([lone, *loads], calibration.profile.pass_time, calibration.hops)
    calibration = replace(calibration, profile=slower(calibration.profile, alone))
    hops = measure_wait(together, hops)
    levels = [level(each, calibration.profile.pass_time, hops) for each in loads]
    return Learnt(replace(calibration, hops=hops), levels)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of live runs to compare with their prediction: ``repeats`` of each case.

    ``folder``: where runs are kept; ``num_requests`` of each load; ``seed``: of all loads.
    """

    calibration: Calibration
    served: LiveModel
    folder: Path
    num_requests: int
    repeats: int
    seed: int

    def run(self, cases: Sequence[HeldOutCase], say: Say) -> Iterator[CaseReport]:
        """Yield the report of each case."""
        capacities: dict[tuple[str, Mix], float] = {}
        for case in cases:
            asked = case.topology, KINDS[case.kind].mix
            if asked not in capacities:
                capacities[asked] = self._capacity(*asked)
                say(f"{case.topology}: {capacities[asked]:.1f} requests/s at most of {case.kind}")
            yield self._examine(case, capacities[asked], say)

    def _examine(self, case: HeldOutCase, capacity: float, say: Say) -> CaseReport:
        rows = case.rows(capacity, self.num_requests, self.seed)
        topology = TOPOLOGIES[case.topology]
        deployment = LiveDeployment(self.served, case.preset, topology)
        runs = []
        for number in range(1, self.repeats + 1):
            say(f"{case.name}, run {number} of {self.repeats}: {rows[-1].arrival_at:.0f} s")
            runs.append(_run(deployment, rows, self.folder / case.name / str(number)))
        slo = limits(self.calibration, topology)
        return examine(case, case.rate(capacity), self.calibration, rows, runs, slo)

    def _capacity(self, topology: str, mix: Mix) -> float:
        """Return the requests/s at which the live cluster works off a crowd."""
        rows = at_once(poisson(1.0, _NUM_CROWD, self.seed, mix))
        deployment = LiveDeployment(self.served, _PLAIN, TOPOLOGIES[topology])
        name = f"{topology}-{mix.prompt}-{mix.output}"
        run = _run(deployment, rows, self.folder / "capacity" / name)
        ended_at = [each.ended_at for each in run.load.seen if each is not None]
        if not ended_at:
            raise HeadwayError(Code.UNAVAILABLE, f"no request of {name} was answered")
        return len(ended_at) / max(ended_at)


def _run(
    deployment: LiveDeployment, rows: Sequence[TraceRow], folder: Path, *, spans: bool = False
) -> LiveRun:
    """Return the run that the folder holds, or run it now; HeadwayError if it holds another."""
    note_asked(deployment, rows, folder)
    load = kept(folder)
    if load is None:
        load = asyncio.run(run_live(deployment, rows, folder, spans=spans))
        keep(load, folder)
    records = read_records(folder / PASSES)
    return LiveRun(load, [each.since(load.began_at) for each in records])
