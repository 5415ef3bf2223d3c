"""Workloads under which pools are scaled: drawn bursts like those of Azure's, or recorded ones.

Recorded traces come from ``shared/data`` (``--data``); a workload without them is left out.
"""

from __future__ import annotations

import heapq
import math
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headway.cost.profile import load_profile
from headway.cost.schema import Profile
from headway.sim.cluster import SimRequest
from headway.workload.traces import TraceRow, load_trace

DATA_VARIABLE = "HEADWAY_DATA"
SECONDS = 60.0
BURST_FACTOR, BURST_MEAN, BURST_SHARE = 3.0, 2.3, 0.47
SINE_PERIOD, SINE_SHARE = 60.0, 0.3
_MOST_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class BurstWorkload:
    """A workload: its requests/s, the deployment, and traces (none: bursts that are drawn).

    ``initial``: prefillers and decoders. ``carried``: requests/s of a prefiller and of a decoder,
    which the paper gives DistServe for such a trace. ``tpot``: the limit of a token, seconds.
    """

    name: str
    rate: float = 22.0
    profile: str = "llama-8b-a100"
    traces: tuple[str, ...] = ()
    initial: tuple[int, int] = (3, 4)
    carried: tuple[float, float] = (14.0, 28.0)
    tpot: float = 0.1

    @property
    def paths(self) -> list[Path]:
        """Files of the traces."""
        return [data_folder() / f"azure_llm_2023_{name}.csv.gz" for name in self.traces]


def data_folder() -> Path:
    """Return the folder of the recorded traces."""
    return Path(os.environ.get(DATA_VARIABLE) or "shared/data")


MAIN, TIGHT = "bursts", "bursts, 20 ms a token"
WORKLOADS: Mapping[str, BurstWorkload] = {
    MAIN: BurstWorkload("Llama-8B on A100, 22 requests/s in bursts"),
    TIGHT: BurstWorkload("Llama-8B on A100, 22 requests/s in bursts, 20 ms a token", tpot=0.02),
    "34B on H100": BurstWorkload(
        "CodeLlama-34B on H100, 10 requests/s in bursts",
        10.0,
        "codellama-34b-h100",
        initial=(3, 8),
        carried=(8.0, 2.5),
    ),
    "Azure conversation": BurstWorkload(
        "Llama-8B on A100, Azure conversation at 22/s", traces=("conv",)
    ),
    "Azure code": BurstWorkload(
        "Llama-8B on A100, Azure code at 6/s", 6.0, traces=("code",), carried=(8.0, 20.0)
    ),
    "Azure mixed": BurstWorkload(
        "Llama-8B on A100, Azure conversation and code at 6/s each",
        12.0,
        traces=("conv", "code"),
        carried=(12.0, 23.0),
    ),
}


def arrivals(seed: int, workload: BurstWorkload = WORKLOADS[MAIN]) -> Iterator[SimRequest]:
    """Yield a workload's requests."""
    rng = random.Random(seed)
    rows = _replayed(workload, rng) if workload.traces else _drawn(workload.rate, rng)
    for number, (at, num_prompt, num_output) in enumerate(rows):
        yield SimRequest(f"r{number}", at, num_prompt, num_output)


def _drawn(rate: float, rng: random.Random) -> Iterator[tuple[float, int, int]]:
    """Yield a Markov-modulated Poisson process on a slow sine."""
    base = rate / (1 - BURST_SHARE + BURST_SHARE * BURST_FACTOR)
    quiet_mean = BURST_MEAN * (1 - BURST_SHARE) / BURST_SHARE
    now, bursting, changes_at = 0.0, False, rng.expovariate(1 / quiet_mean)
    most = base * BURST_FACTOR * (1 + SINE_SHARE)
    while True:
        now += rng.expovariate(most)
        if now > SECONDS:
            return
        while changes_at < now:
            bursting = not bursting
            changes_at += rng.expovariate(1 / (BURST_MEAN if bursting else quiet_mean))
        wave = 1 + SINE_SHARE * math.sin(2 * math.pi * now / SINE_PERIOD)
        if rng.random() * most > base * wave * (BURST_FACTOR if bursting else 1.0):
            continue
        num_prompt = min(8192, max(8, round(rng.lognormvariate(math.log(800), 0.9))))
        num_output = min(1500, max(2, round(rng.lognormvariate(math.log(130), 0.9))))
        yield now, num_prompt, num_output


def _replayed(workload: BurstWorkload, rng: random.Random) -> Iterator[tuple[float, int, int]]:
    """Yield a window of each trace, as fast as an even share of the rate asks."""
    rate = workload.rate / len(workload.traces)
    windows = [_window(path, rate, rng) for path in workload.paths]
    for row in heapq.merge(*windows, key=lambda row: row.arrival_at):
        yield row.arrival_at, min(8192, row.prompt_tokens or 1), row.output_tokens or 1


def _window(path: Path, rate: float, rng: random.Random) -> list[TraceRow]:
    """Draw a window that has requests: a trace may pause for longer."""
    trace = load_trace(path)
    rows = trace.faster(rate / trace.mean_rate).rows
    last = max(0.0, rows[-1].arrival_at - SECONDS)
    for begin in (rng.uniform(0.0, last) for _ in range(_MOST_DRAWS)):
        if window := [row for row in rows if begin <= row.arrival_at < begin + SECONDS]:
            return [replace(row, arrival_at=row.arrival_at - begin) for row in window]
    raise ValueError(f"{path}: no request in {_MOST_DRAWS} windows of {SECONDS:g} s")


def predicted(accuracy: float, profile: Profile, seed: int, request: SimRequest) -> int:
    """Return the output tokens of the bucket that a predictor of this accuracy names."""
    buckets, rng = profile.buckets, random.Random(f"{seed}/{request.request_id}")
    output = buckets.lengths(buckets.of(request.num_prompt_tokens, request.num_output_tokens))[1]
    if rng.random() < accuracy:
        return output
    return rng.choice([other for other in buckets.output_tokens if other != output])


def needed(
    seed: int, workload: BurstWorkload = WORKLOADS[MAIN], width: float = 2.0
) -> list[tuple[float, float]]:
    """Return the GPUs for what arrives in each ``width`` seconds (equations 2, 3, no headroom)."""
    profile = load_profile(workload.profile)
    bins = [0.0] * math.ceil(SECONDS / width)
    for request in arrivals(seed, workload):
        num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
        bucket = profile.buckets.of(num_prompt, float(num_output))
        instance_seconds = num_prompt / profile.prefill_velocity()
        instance_seconds += (num_prompt + num_output) / profile.decode_velocity(bucket)
        bins[int(request.arrival_at / width)] += instance_seconds * profile.num_gpus / width
    return [(place * width, gpus) for place, gpus in enumerate(bins)]
