"""Readers who wait for a first token pass who reasons: in the window as in the worker's order."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headway.class_metrics import READER_PACE, begins_in_time
from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.metrics import VIOLATION
from headway.presets import find_preset
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

PLACES = 16
MEAN_OUTPUT = 160.0
PROFILE = replace(load_profile("llama-8b-a100"), chunk_tokens=512)
"""With chunks so small that prompts which wait for a place fill them: the window holds the rest."""


def overload(seed: int, seconds: float = 20.0, share: float = 1.3) -> Iterator[SimRequest]:
    """Chats and, four in ten, reasoning: ``share`` times what the places carry."""
    rng = random.Random(seed)
    costs = PROFILE.pass_time
    rate = share * PLACES / (costs.base + PLACES * costs.per_request) / MEAN_OUTPUT
    at, number = rng.expovariate(rate), 0
    while at < seconds:
        num_reasoning = rng.randrange(20, 200) if rng.random() < 0.4 else 0
        num_output = num_reasoning + rng.randrange(40, 161)
        prompt = rng.randrange(20, 200)
        yield SimRequest(f"r{number}", at, prompt, num_output, num_reasoning)
        at, number = at + rng.expovariate(rate), number + 1


def run(order: str, seed: int) -> Sequence[Record]:
    """Simulate one unified instance with few places.

    Its order says nothing of what yields. Else chats pass what is queued, and packing decides less.
    """
    conditions = Conditions(
        [(InstanceSpec(Role.UNIFIED, PROFILE), 1)],
        NetworkParams(PROFILE.link_bytes_per_s),
        policies={"batching": "chats-first"},
        params={"packing": {"order": order}},
        max_running=PLACES,
    )
    spec = cluster_spec(find_preset("headway"), conditions)
    return simulate(spec, overload(seed)).records


def in_time(records: Sequence[Record]) -> float:
    """Return the share that begins in time and is read as it comes."""
    return statistics.fmean(
        begins_in_time(each.num_reasoning_tokens, each.ttft, each.ttfat)
        and (each.qoe(READER_PACE) or 0.0) >= VIOLATION
        for each in records
    )


def test_in_an_overload_more_chats_are_read_in_time_and_more_answers_in_all() -> None:
    found = {
        order: [each for seed in (101, 102) for each in run(order, seed)]
        for order in ("boost", "readers")
    }
    chats = {
        order: in_time([each for each in records if not each.num_reasoning_tokens])
        for order, records in found.items()
    }
    assert all(each.finished for records in found.values() for each in records)
    assert chats["readers"] > chats["boost"] + 0.03
    assert in_time(found["readers"]) > in_time(found["boost"])


def test_the_preset_packs_readers_first() -> None:
    assert find_preset("headway").params["packing"] == {"order": "readers"}


def test_short_prompts_pass_one_that_takes_many_passes() -> None:
    """A long prompt fills the chunks of its instance for seconds; chats come meanwhile."""
    chats = [SimRequest(f"r{n}", 0.5 + 0.2 * n, 500, 20) for n in range(10)]
    requests = [SimRequest("long", 0.0, 60_000, 20), *chats]
    ttft = {}
    for passes in (False, True):
        conditions = Conditions(
            [(InstanceSpec(role, PROFILE), 1) for role in (Role.PREFILL, Role.DECODE)],
            NetworkParams(PROFILE.link_bytes_per_s),
            params={"dispatch": {"passes": passes}},
        )
        spec = cluster_spec(find_preset("headway"), conditions)
        records = simulate(spec, iter(requests)).records
        ttft[passes] = {each.request_id: each.ttft or 0.0 for each in records}
    assert max(ttft[True][each.request_id] for each in chats) < 0.5
    assert max(ttft[False][each.request_id] for each in chats) > 2.0
    assert ttft[True]["long"] < 1.25 * ttft[False]["long"]
