"""Profiles of the instances that serve: what their workers have measured, for a replay of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from headway.cluster import Role
from headway.cost.pass_time import PassTime
from headway.cost.schema import Profile
from headway.errors import Code, HeadwayError
from headway.messages import MeasuredCosts
from headway.picture import WorkerPicture

MEASURED = "measured"
"""The name of such a profile."""
_PREFILL = ("per_prefill_token",)
_DECODE = ("per_request", "per_kv_token")


def measured_profiles(workers: Sequence[WorkerPicture]) -> Mapping[Role, Profile]:
    """Return a profile for each role: medians of what its workers measured, else of all others.

    FAILED_PRECONDITION while no worker has measured passes with prompts, or decode passes.
    """
    prefills = [each for each in workers if _knows(each, _PREFILL)]
    decodes = [each for each in workers if _knows(each, _DECODE)]
    for known, what in ((prefills, "prompts"), (decodes, "decode passes")):
        if not known:
            message = (
                f"the workers have measured too few {what} so far to say what they cost: name a "
                "profile (--profile), or ask again after more requests"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="profile")
    return {role: _profile(role, prefills, decodes) for role in Role}


def packed(profiles: Mapping[Role, Profile]) -> dict[str, Any]:
    """Return such profiles as JSON values, which ``unpacked`` reads."""
    return {role.value: {**asdict(profile), "buckets": None} for role, profile in profiles.items()}


def unpacked(by_role: Mapping[str, Mapping[str, Any]]) -> dict[Role, Profile]:
    """Return the profiles in such values; HeadwayError, TypeError or KeyError for others."""
    profiles: dict[Role, Profile] = {}
    for role, fields in by_role.items():
        given = {name: value for name, value in fields.items() if name != "buckets"}
        profiles[Role(role)] = Profile(**{**given, "pass_time": PassTime(**given["pass_time"])})
    return profiles


def _profile(
    role: Role,
    prefills: Sequence[WorkerPicture],
    decodes: Sequence[WorkerPicture],
) -> Profile:
    of_prefill, of_decode = _like(role, prefills), _like(role, decodes)
    base = _median(of_prefill if role is Role.PREFILL else of_decode, "base")
    one = _like(role, [*prefills, *decodes])[0]
    chunk_tokens = one.costs.chunk_tokens if one.costs is not None else 0
    kv_bytes_per_token = one.costs.kv_bytes_per_token if one.costs is not None else 0
    per_unit = max(one.num_blocks // one.num_units, 1)
    return Profile(
        name=MEASURED,
        model=one.model,
        device="what serves now",
        dtype="what serves now",
        parallelism="what serves now",
        origin="measured by the workers while they served",
        pass_time=PassTime(
            base,
            per_prefill_token=_median(of_prefill, "per_prefill_token"),
            per_request=_median(of_decode, "per_request"),
            per_kv_token=_median(of_decode, "per_kv_token"),
            per_prefill_context=_median(of_prefill, "per_prefill_context"),
        ),
        kv_bytes_per_token=max(kv_bytes_per_token, 1),
        kv_capacity_tokens=per_unit * one.block_size,
        chunk_tokens=max(chunk_tokens, 1),
        num_units=one.num_units,
        block_size=one.block_size,
        swap_per_token=_median(_like(role, [*prefills, *decodes]), "swap_per_token"),
        convertible_chunk_tokens=max(chunk_tokens, 1),
    )


def _measured(worker: WorkerPicture) -> MeasuredCosts:
    return MeasuredCosts() if worker.costs is None else worker.costs.measured


def _knows(worker: WorkerPicture, names: Iterable[str]) -> bool:
    return any(getattr(_measured(worker), name) > 0 for name in names)


def _like(role: Role, workers: Sequence[WorkerPicture]) -> Sequence[WorkerPicture]:
    """Return the workers of a role, or all where there is none."""
    return [each for each in workers if each.role is role] or workers


def _median(workers: Sequence[WorkerPicture], name: str) -> float:
    return float(median(getattr(_measured(each), name) for each in workers))
