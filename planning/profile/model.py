"""A profile from the passes that workers recorded."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from headway.blocks import blocks_for
from headway.cost.buckets import NUM_BUCKETS, Buckets
from headway.cost.fit import Fit, MeasuredPass, fit_pass_time
from headway.cost.pass_time import PassTime, Share
from headway.cost.profile import Profile
from headway.cost.velocity import (
    convertible_chunk,
    convertible_velocity,
    decode_velocities,
    prefill_velocity,
)
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
    """Read every worker's records; HeadwayError where there is none, or one cannot be read."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        whole, _, _ = path.read_text("utf-8").rpartition("\n")  # a killed worker's last is cut
        if not whole:
            continue
        try:
            first, *rest = map(json.loads, whole.splitlines())
            lines = [each for each in rest if each["seconds"] > 0]
            passes = [MeasuredPass(Share(**each["share"]), each["seconds"]) for each in lines]
            began_at = [each["began_at"] for each in lines]
            records.append(WorkerRecord(first["worker"], passes, began_at))
        except (ValueError, LookupError, TypeError) as error:
            message = f"{path} is no record of a worker's passes ({error!r}): take it away"
            raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
    if not any(each.passes for each in records):
        raise HeadwayError(Code.FAILED_PRECONDITION, f"no worker recorded a pass in {folder}")
    return records


def fit_profile(records: Sequence[WorkerRecord], name: str, device: str) -> tuple[Profile, Fit]:
    """Pass times by least squares over all workers' passes; capacities from the workers.

    Least squares of shares are met best a little below the mean, where times have a long tail, and
    a prefill meets more of what else runs than a decode pass. So decode terms are then stretched
    alike, and those of prefill, until passes of either kind take as long together as they did.
    """
    passes = [each for record in records for each in record.passes]
    fit = fit_pass_time(passes)
    fit = replace(fit, pass_time=matched(fit.pass_time, passes))
    worker = records[0].worker
    buckets = Buckets().within(worker["max_model_len"])
    shortest = blocks_for(sum(buckets.lengths(0)), worker["block_size"])
    profile = Profile(
        name=name,
        model=worker["model"],
        device=device,
        dtype="the checkpoint's",
        parallelism="none",
        origin=(
            f"measured by `headway profile run`; {fit.num_passes} passes fitted, R² "
            f"{fit.r_squared:.4f}, error median {fit.median_error:.1%}, P95 {fit.p95_error:.1%} "
            "of a pass; velocities follow from pass times"
        ),
        kv_bytes_per_token=worker["kv_bytes_per_token"],
        kv_capacity_tokens=worker["num_blocks"] * worker["block_size"],
        chunk_tokens=worker["chunk_tokens"],
        block_size=worker["block_size"],
        max_batch=max(1, worker["num_blocks"] // shortest),
        pass_time=fit.pass_time,
        buckets=buckets,
    )
    return with_velocities(profile), fit


def with_velocities(profile: Profile) -> Profile:
    """Return the profile with the velocities that follow from its pass times."""
    pass_time, memory, buckets = profile.pass_time, profile.memory, profile.buckets
    return replace(
        profile,
        prefill_tokens_per_s=prefill_velocity(pass_time, memory, buckets.input_tokens),
        decode_tokens_per_s=decode_velocities(pass_time, memory, buckets),
    )


def with_chunk(profile: Profile, tpot_slo: float) -> Profile:
    """Return the profile with a convertible decoder's chunk and V_conv; none where none fits.

    ``tpot_slo``: seconds between tokens, beside a batch of the middle bucket.
    """
    lengths = profile.buckets.lengths(NUM_BUCKETS // 2)
    fitting = convertible_chunk(profile.pass_time, profile.memory, *lengths, tpot_slo)
    if fitting is None:
        return profile
    velocity = convertible_velocity(*fitting, tpot_slo)
    origin = f"{profile.origin}; V_conv for a TPOT of {tpot_slo:g} s"
    return replace(
        profile,
        origin=origin,
        convertible_chunk_tokens=fitting[0],
        convertible_tokens_per_s=velocity,
    )


def slower(profile: Profile, factor: float) -> Profile:
    """Return the profile of a machine whose passes all take so many times as long."""
    terms = [each.name for each in fields(PassTime) if each.name != "gate"]
    return with_velocities(replace(profile, pass_time=_times(profile.pass_time, terms, factor)))


def matched(pass_time: PassTime, passes: Sequence[MeasuredPass]) -> PassTime:
    """Decode and prefill terms each times a factor: both kinds of passes sum up to what they took.

    A kind that was not measured keeps its terms.
    """
    decoding = [p for p in passes if not p.share.prefill_tokens]
    prefilling = [p for p in passes if p.share.prefill_tokens]
    predicted = sum(pass_time.seconds(*p.share) for p in decoding)
    if predicted > 0:
        factor = sum(p.seconds for p in decoding) / predicted
        pass_time = _times(pass_time, ("base", "per_request", "per_kv_token"), factor)
    without = [pass_time.seconds(0, 0, *p.share[2:]) for p in prefilling]
    own = sum(pass_time.seconds(*p.share) for p in prefilling) - sum(without)
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
    work = [profile.pass_time.seconds(*each.share) for each in passes]
    return MeasuredPace(work, [each.seconds for each in passes])
