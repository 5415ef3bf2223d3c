"""The same requests on a simulated cluster that costs what the machine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.cluster import Role
from headway.metrics import percentile
from headway.presets import find_preset
from headway.sim.experiment import Conditions, Run, cluster_spec, simulate
from headway.sim.planning import HEADWAY, NATIVE
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec
from headway.workload.traces import TraceRow
from planning.profile.calibration import Calibration
from planning.profile.figures import LatencyLimits, Load, Seen
from planning.profile.loads import one_by_one, simulated
from planning.profile.model import slower
from services.local.options import WorkerCounts

NUM_REPLAYS = 2
"""Simulations of a load, each from another place of the machine's pace."""
MOVES = ("rescheduling", "boundary", "drain")
"""Questions whose answers move running requests."""
PLANNERS = {"vllm-native": NATIVE}
"""Engines that plan their own passes, and show them."""
_REPORT_INTERVAL = 0.05
_NUM_LONE = 21
_TTFT_FACTOR, _TPOT_FACTOR = 5.0, 2.5


@dataclass(frozen=True, slots=True)
class Prediction:
    """A load as it is predicted, several times; moves and GPU-seconds are means over them."""

    loads: Sequence[Load]
    num_moves: float
    gpu_seconds: float


def predict(
    calibration: Calibration,
    preset: str,
    topology: WorkerCounts,
    rows: Sequence[TraceRow],
    *,
    level: float = 1.0,
    num_replays: int = NUM_REPLAYS,
) -> Prediction:
    """Simulate the requests; ``level``: a factor on all pass times."""
    profile = slower(calibration.profile, level)
    planner = PLANNERS.get(calibration.engine.name, HEADWAY)
    instances = [
        (InstanceSpec(Role(role), profile, calibration.max_model_len, planner=planner), count)
        for role, count in topology.by_role().items()
        if count
    ]
    runs = []
    for number in range(num_replays):
        pace = replace(calibration.pace, start=number / num_replays)
        conditions = Conditions(
            instances, calibration.network(), report_interval=_REPORT_INTERVAL, pace=pace
        )
        spec = cluster_spec(find_preset(preset), conditions)
        runs.append(simulate(spec, simulated(rows), keeps_decisions=True))
    num_moves = sum(_num_moves(run) for run in runs) / num_replays
    gpu_seconds = sum(run.gpu_seconds for run in runs) / num_replays
    return Prediction([_load(run.records, len(rows)) for run in runs], num_moves, gpu_seconds)


def limits(calibration: Calibration, topology: WorkerCounts) -> LatencyLimits:
    """Return an SLO: some times what a request takes that meets no other."""
    rows = [replace(row, output_tokens=40) for row in one_by_one(5.0, _NUM_LONE, 0)]
    (lone,) = predict(calibration, "vllm-like", topology, rows, num_replays=1).loads
    seen = [each for each in lone if each is not None]
    ttft = percentile(sorted(each.ttft for each in seen), 0.5)
    tpot = percentile(sorted(each.tpot or 0.0 for each in seen), 0.5)
    return LatencyLimits(_TTFT_FACTOR * ttft, _TPOT_FACTOR * tpot)


def _num_moves(run: Run) -> int:
    return sum(len(each.chosen) for each in run.decisions if each.question in MOVES)


def _load(records: Sequence[Record], size: int) -> Load:
    """Return what clients saw, in the order of arrival."""
    load: list[Seen | None] = [None] * size
    for each in records:
        if each.ttft is not None and each.ttlt is not None:
            ended_at = each.arrival_at + each.ttlt
            load[int(each.request_id)] = Seen(each.ttft, each.tpot, each.ttlt, ended_at)
    return load
