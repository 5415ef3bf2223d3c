"""A simulated cluster that costs what this machine does, made from recorded passes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.calibrate.figures import Seen
from bench.calibrate.live import simulated
from headway.cluster import Role
from headway.cost.fit import Fit, MeasuredPass, fit_pass_time
from headway.cost.pass_time import PassTime
from headway.cost.passes import parse_passes
from headway.cost.profile import Profile
from headway.cost.velocity import decode_velocities, prefill_velocity
from headway.errors import Code, HeadwayError
from headway.presets import find_preset
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.pace import MeasuredPace
from headway.sim.worker import InstanceSpec
from headway.workload.traces import TraceRow

_NUM_STEPS = 8  # of the search for the latency
NUM_REPLAYS = 8
"""Simulations of a load: percentiles are over the requests of all."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's own description, and its passes."""

    worker: dict[str, Any]
    passes: list[MeasuredPass]


def read_records(folder: Path) -> list[WorkerRecord]:
    """Read every worker's records; HeadwayError where there is none."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a killed worker's last is cut
        if not whole:
            continue
        lines = whole.splitlines()
        worker = json.loads(lines[0])["worker"]
        passes = [p for p in parse_passes(lines, path.name) if p.seconds > 0] if lines[1:] else []
        found.append(WorkerRecord(worker, passes))
    if not any(each.passes for each in found):
        raise HeadwayError(Code.FAILED_PRECONDITION, f"no worker recorded a pass in {folder}")
    return found


def fit_profile(records: Sequence[WorkerRecord], name: str) -> tuple[Profile, Fit]:
    """Pass times by least squares over all workers' passes; capacities from the workers.

    Least squares of shares are met best a little below the mean, where times have a long tail, and
    a prefill meets more of what else runs than a decode pass. So decode terms are then stretched
    alike, and those of prefill, until passes of either kind take as long together as they did.
    """
    passes = [each for record in records for each in record.passes]
    fit = fit_pass_time(_without_outliers(passes))
    fit = replace(fit, pass_time=matched(fit.pass_time, passes))
    worker = records[0].worker
    profile = Profile(
        name=name,
        model=worker["model"],
        device="this machine",
        dtype="the checkpoint's",
        parallelism="none",
        origin=f"fitted to {fit.num_passes} passes of a live run",
        kv_bytes_per_token=worker["kv_bytes_per_token"],
        kv_capacity_tokens=worker["num_blocks"] * worker["block_size"],
        chunk_tokens=worker["chunk_tokens"],
        block_size=worker["block_size"],
        pass_time=fit.pass_time,
    )
    return with_velocities(profile), fit


def with_velocities(profile: Profile) -> Profile:
    """Return the profile with the velocities that follow from its pass times."""
    pass_time, memory = profile.pass_time, profile.memory
    return replace(
        profile,
        prefill_tokens_per_s=prefill_velocity(pass_time, memory),
        decode_tokens_per_s=decode_velocities(pass_time, memory, profile.buckets),
    )


def matched(pass_time: PassTime, passes: Sequence[MeasuredPass]) -> PassTime:
    """Decode and prefill terms each times a factor: both kinds of passes sum up to what they took.

    Passes are those of one DP unit. A kind that was not measured keeps its terms.
    """
    decoding = [p for p in passes if not p.shares[0].prefill_tokens]
    prefilling = [p for p in passes if p.shares[0].prefill_tokens]
    predicted = sum(pass_time.lock_step(p.shares) for p in decoding)
    if predicted > 0:
        factor = sum(p.seconds for p in decoding) / predicted
        pass_time = _times(pass_time, ("base", "per_request", "per_kv_token"), factor)
    without = [pass_time.seconds(0, 0, *p.shares[0][2:]) for p in prefilling]
    own = sum(pass_time.lock_step(p.shares) for p in prefilling) - sum(without)
    left = sum(p.seconds for p in prefilling) - sum(without)
    if own > 0 and left > 0:
        terms = ("per_prefill_token", "per_prefill_context")
        pass_time = _times(pass_time, terms, left / own)
    return pass_time


def _times(pass_time: PassTime, terms: Sequence[str], factor: float) -> PassTime:
    return replace(pass_time, **{name: factor * getattr(pass_time, name) for name in terms})


def measured_pace(records: Sequence[WorkerRecord], profile: Profile) -> MeasuredPace:
    """Return the workers' passes, one worker's behind another's."""
    passes = [each for record in records for each in record.passes]
    work = [profile.pass_time.lock_step(each.shares) for each in passes]
    return MeasuredPace(work, [each.seconds for each in passes])


def _without_outliers(passes: Sequence[MeasuredPass]) -> list[MeasuredPass]:
    """Drop the slowest 1 % of passes: one that the machine interrupted says nothing of passes."""
    by_time = sorted(passes, key=lambda p: p.seconds)
    return by_time[: max(8, int(0.99 * len(by_time)))]


def simulation(
    records: Sequence[WorkerRecord],
    profile: Profile,
    preset: str,
    rows: Sequence[TraceRow],
    latency: float,
) -> list[Seen]:
    """Simulate the same requests on as many workers; ``latency`` of a message, s.

    Several times, at the pace of the recorded passes from several places on: what each run sees.
    """
    instances = tuple(
        (InstanceSpec(Role(each.worker["role"]), profile, each.worker["max_model_len"]), 1)
        for each in records
    )
    network = NetworkParams(
        bytes_per_s=profile.link_bytes_per_s, latency=latency, dispatch_latency=latency
    )
    pace = measured_pace(records, profile)
    seen: list[Seen] = []
    for number in range(NUM_REPLAYS):
        from_there = replace(pace, start=number / NUM_REPLAYS)
        conditions = Conditions(instances, network, report_interval=0.05, pace=from_there)
        run = simulate(cluster_spec(find_preset(preset), conditions), simulated(rows))
        seen += _seen(run.records)
    return seen


def _seen(records: Iterable[Any]) -> Iterable[Seen]:
    for record in records:
        if record.finished:
            yield Seen(record.ttft, record.tpot, record.ttlt)


def find_latency(
    records: Sequence[WorkerRecord],
    profile: Profile,
    preset: str,
    rows: Sequence[TraceRow],
    ttft: float,
) -> float:
    """Find the message latency with which lone requests have this median TTFT (s); 0 at least."""
    low, high = 0.0, max(ttft, 1e-4)
    for _ in range(_NUM_STEPS):
        middle = (low + high) / 2
        found = sorted(s.ttft for s in simulation(records, profile, preset, rows, middle))
        if found[len(found) // 2] < ttft:
            low = middle
        else:
            high = middle
    return (low + high) / 2
