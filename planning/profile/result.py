"""A profile of the measured figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.blocks import blocks_for
from headway.cluster import WorkerInfo
from headway.cost.buckets import BUCKET_NAMES, Buckets
from headway.cost.fit import Fit, MeasuredPass, fit_pass_time, judge
from headway.cost.profile import Profile
from headway.cost.velocity import convertible_velocity
from planning.calibrate.model import matched

OUTLIERS = 0.01
"""Share of passes, the latest beside the model, that the machine interrupted."""

BUSY_ERROR = 0.25
"""Passes of a machine of one's own are nearer to their model."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment in words: texts that a profile bears."""

    name: str
    device: str
    dtype: str
    parallelism: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Velocities in tokens/s, ``decode`` of the nine buckets; ``start_up`` in seconds.

    ``chunk``: the longest prompt that met ``tpot_slo`` (s) beside ``decode_batch`` requests, None
    where none did.
    """

    buckets: Buckets
    start_up: float
    prefill: float
    network: float
    decode: Sequence[float]
    chunk: int | None
    decode_batch: int
    tpot_slo: float


def fit_passes(passes: Sequence[MeasuredPass]) -> Fit:
    """Pass times without the passes that took the machine by surprise.

    Least squares of shares are met best a little below the mean: terms are then matched, so that
    passes take as long together as they did.
    """
    first = fit_pass_time(passes)
    late = sorted(passes, key=lambda p: p.seconds / first.pass_time.lock_step(p.shares))
    kept = late[: max(8, round((1 - OUTLIERS) * len(late)))]
    return judge(matched(fit_pass_time(kept).pass_time, kept), kept)


def make_profile(info: WorkerInfo, deployment: Deployment, measured: Measured, fit: Fit) -> Profile:
    """Make the profile for services and simulator; memory and limits are the worker's own."""
    smallest = blocks_for(sum(measured.buckets.lengths(0)), info.block_size)
    convertible: Mapping[str, float] = {}
    if measured.chunk is not None:
        chunk = measured.chunk + measured.decode_batch
        velocity = convertible_velocity(chunk, measured.decode_batch, measured.tpot_slo)
        convertible = {"convertible_chunk_tokens": chunk, "convertible_tokens_per_s": velocity}
    return Profile(
        name=deployment.name,
        model=info.model,
        device=deployment.device,
        dtype=deployment.dtype,
        parallelism=deployment.parallelism,
        origin=(
            f"measured by `headway profile run`; {fit.num_passes} passes fitted, R² "
            f"{fit.r_squared:.4f}, error median {fit.median_error:.1%}, P95 {fit.p95_error:.1%} "
            f"of a pass; V_conv for a TPOT of {measured.tpot_slo:g} s"
        ),
        pass_time=fit.pass_time,
        kv_bytes_per_token=info.kv_bytes_per_token,
        kv_capacity_tokens=info.num_blocks * info.block_size,
        chunk_tokens=info.chunk_tokens,
        num_units=info.num_units,
        block_size=info.block_size,
        max_batch=max(1, info.num_blocks // smallest),
        link_bytes_per_s=measured.network * info.kv_bytes_per_token,
        start_up=measured.start_up,
        prefill_tokens_per_s=measured.prefill,
        network_tokens_per_s=measured.network,
        decode_tokens_per_s=tuple(measured.decode),
        buckets=measured.buckets,
        **convertible,  # type: ignore[arg-type]  # whole where it has to be
    )


def doubt(fit: Fit) -> str:
    """Return what speaks against a profile with such a fit; "" where nothing does."""
    if fit.median_error <= BUSY_ERROR:
        return ""
    return (
        f"passes are {fit.median_error:.0%} off their model (median; up to {BUSY_ERROR:.0%} is "
        "usual): something else runs on this machine; stop it and measure again"
    )


def table(profile: Profile) -> list[tuple[str, str]]:
    """Return the findings, in lines of a name and its figure."""
    rows = [
        ("V_P", f"{profile.prefill_tokens_per_s:,.0f} prompt tokens/s"),
        ("V_N", f"{profile.network_tokens_per_s:,.0f} tokens/s of KV"),
        *(
            (f"V_D {name}", f"{velocity:,.0f} tokens/s")
            for name, velocity in zip(BUCKET_NAMES, profile.decode_tokens_per_s, strict=True)
        ),
        ("start-up", f"{profile.start_up:.2f} s"),
        ("KV", f"{profile.kv_bytes_per_token} bytes/token, {profile.kv_capacity_tokens:,} tokens"),
    ]
    if profile.convertible_chunk_tokens is not None:
        rows.append(("chunk", f"{profile.convertible_chunk_tokens} tokens"))
        rows.append(("V_conv", f"{profile.convertible_tokens_per_s:,.0f} tokens/s"))
    else:
        rows.append(("chunk", "none: decoding alone is over the TPOT SLO"))
    return rows
