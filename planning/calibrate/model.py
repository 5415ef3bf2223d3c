"""A profile from the passes that workers recorded."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headway.cost.fit import Fit, MeasuredPass, fit_pass_time
from headway.cost.pass_time import PassTime
from headway.cost.passes import parse_passes
from headway.cost.profile import Profile
from headway.cost.velocity import decode_velocities, prefill_velocity
from headway.errors import Code, HeadwayError
from headway.sim.pace import MeasuredPace


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's own description, its passes, and when each began, by its host's clock."""

    worker: dict[str, Any]
    passes: Sequence[MeasuredPass]
    began_at: Sequence[float] = ()

    def is_busy_at(self, at: float) -> bool:
        """Return whether a pass was under way; passes are in order."""
        place = bisect_right(self.began_at, at) - 1
        return place >= 0 and at < self.began_at[place] + self.passes[place].seconds

    def since(self, at: float) -> WorkerRecord:
        """Return it without the passes that began earlier."""
        kept = [each for each in zip(self.passes, self.began_at, strict=True) if each[1] >= at]
        return replace(self, passes=[p for p, _ in kept], began_at=[began for _, began in kept])


def read_records(folder: Path) -> list[WorkerRecord]:
    """Read every worker's records; HeadwayError where there is none."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a killed worker's last is cut
        if not whole:
            continue
        lines = whole.splitlines()
        worker = json.loads(lines[0])["worker"]
        passes = parse_passes(lines, path.name) if lines[1:] else []
        began_at = [json.loads(line).get("began_at", 0.0) for line in lines[1:]]
        kept = [(p, at) for p, at in zip(passes, began_at, strict=True) if p.seconds > 0]
        records.append(WorkerRecord(worker, [p for p, _ in kept], [at for _, at in kept]))
    if not any(each.passes for each in records):
        raise HeadwayError(Code.FAILED_PRECONDITION, f"no worker recorded a pass in {folder}")
    return records


def fit_profile(
    records: Sequence[WorkerRecord], name: str, *, link_bytes_per_s: float = 0.0
) -> tuple[Profile, Fit]:
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
    if link_bytes_per_s > 0:
        profile = replace(profile, link_bytes_per_s=link_bytes_per_s)
    return with_velocities(profile), fit


def with_velocities(profile: Profile) -> Profile:
    """Return the profile with the velocities that follow from its pass times."""
    pass_time, memory = profile.pass_time, profile.memory
    return replace(
        profile,
        prefill_tokens_per_s=prefill_velocity(pass_time, memory),
        decode_tokens_per_s=decode_velocities(pass_time, memory, profile.buckets),
    )


def slower(profile: Profile, factor: float) -> Profile:
    """Return the profile of a machine whose passes all take so many times as long."""
    terms = [each.name for each in fields(PassTime) if each.name != "gate"]
    return with_velocities(replace(profile, pass_time=_times(profile.pass_time, terms, factor)))


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
