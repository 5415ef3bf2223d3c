"""Who waits in an overload of 45 seconds on two unified workers, against first come, first served.

A twin of ``headway demo --least-pass-time 0.01``: four places a worker and passes of 10 ms. Four
requests in ten reason, one in ten is read by nobody. Blocks are never short.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from functools import cache

import pytest

from headway.cluster import Role
from headway.cost.pass_time import PassTime
from headway.cost.profile import load_profile
from headway.presets import find_preset
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

PLACES, NUM_WORKERS, PASS = 4, 2, 0.01
RATE = 1.3 * NUM_WORKERS * PLACES / PASS / 144  # of what 144 output tokens a request leave
PROFILE = replace(
    load_profile("llama-8b-a100"), pass_time=PassTime(PASS, 1e-7, 1e-7), chunk_tokens=512
)
SEEDS = (21, 22)


def overload(seed: int) -> list[SimRequest]:
    rng, made = random.Random(seed), list[SimRequest]()
    at = rng.expovariate(RATE)
    while at < 45.0:
        reasoning = rng.randrange(20, 200) if rng.random() < 0.4 else 0
        output, prompt = reasoning + rng.randrange(40, 161), rng.randrange(20, 200)
        is_read = rng.random() >= 0.1
        name = f"r{len(made)}"
        made.append(SimRequest(name, at, prompt, output, reasoning, is_read=is_read))
        at += rng.expovariate(RATE)
    return made


def longest(records: list[Record]) -> dict[str, float]:
    """Return the P99 of what each class waits for, seconds."""
    waits: dict[str, list[float]] = {"chats": [], "reasoning": [], "unread": []}
    for each in records:
        if not each.is_read:
            waits["unread"].append((each.ttlt or 0.0) / each.num_output_tokens)
        elif each.num_reasoning_tokens:
            waits["reasoning"].append(each.ttfat or 0.0)
        else:
            waits["chats"].append(each.ttft or 0.0)
    return {name: statistics.quantiles(found, n=100)[98] for name, found in waits.items()}


@cache
def run(preset: str, seed: int, weight: float | None = None) -> dict[str, float]:
    conditions = Conditions(
        [(InstanceSpec(Role.UNIFIED, PROFILE), NUM_WORKERS)],
        NetworkParams(PROFILE.link_bytes_per_s),
        params={"batching": {"lag_weight": weight}} if weight else {},
        max_running=PLACES,
    )
    return longest(
        list(simulate(cluster_spec(find_preset(preset), conditions), iter(overload(seed))).records)
    )


@pytest.mark.parametrize(("weight", "chats", "others"), [(1.0, 0.75, 1.05), (2.0, 0.45, 1.08)])
def test_chats_begin_sooner_and_the_tails_of_others_stay(
    weight: float, chats: float, others: float
) -> None:
    ratios: dict[str, list[float]] = {}
    for seed in SEEDS:
        plain, ours = run("vllm-like", seed), run("headway", seed, weight)
        for name, wait in ours.items():
            ratios.setdefault(name, []).append(wait / plain[name])
    means = {name: statistics.fmean(each) for name, each in ratios.items()}
    assert means["chats"] < chats
    assert means["reasoning"] < others
    assert means["unread"] < others
