"""In an overload of prompts those that can still be in time are computed before who cannot."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.presets import find_preset
from headway.service_class import ServiceClass, Standing
from headway.sim.clients import SimRequest
from headway.sim.cluster import ClusterSpec
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.records import Record
from headway.sim.views.run import simulate_views
from headway.sim.worker import InstanceSpec

PROFILE = load_profile("llama-8b-a100")
IN_TIME = 2.0
"""Seconds to the first token of so long a prompt, as dispatch plans by default."""
NO_CLASS, STRICT = Standing(), Standing(service=ServiceClass("chats", tpot=0.05))


def spec(late_weight: float) -> ClusterSpec:
    """One prefiller and one decoder."""
    conditions = Conditions(
        [(InstanceSpec(role, PROFILE), 1) for role in (Role.PREFILL, Role.DECODE)],
        NetworkParams(PROFILE.link_bytes_per_s),
        params={"dispatch": {"late_weight": late_weight}},
    )
    return cluster_spec(find_preset("headway"), conditions)


def prompts(standing: Standing = NO_CLASS) -> Sequence[SimRequest]:
    """A minute of 130 % of what the prefiller computes."""
    rng = random.Random(101)
    at = accumulate(rng.expovariate(1.3 * 10_700 / 2048) for _ in range(400))
    return [SimRequest(f"r{n}", t, rng.randrange(1024, 3072), 8, standing=standing)
            for n, t in enumerate(at)]  # fmt: skip


def share_in_time(records: Sequence[Record]) -> float:
    return sum(each.ttft is not None and each.ttft <= IN_TIME for each in records) / len(records)


@pytest.mark.parametrize("standing", [NO_CLASS, STRICT])
def test_more_than_twice_as_many_first_tokens_come_in_time_and_nobody_starves(
    standing: Standing,
) -> None:
    by_weight = {w: simulate(spec(w), iter(prompts(standing))).records for w in (0.0, 10.0)}
    assert all(each.finished for records in by_weight.values() for each in records)
    assert share_in_time(by_weight[10.0]) > 2 * share_in_time(by_weight[0.0])
    longest = {w: max(each.ttft or 0.0 for each in records) for w, records in by_weight.items()}
    assert longest[10.0] < longest[0.0] + 10 * IN_TIME


def test_the_policies_alone_say_so_too() -> None:
    cores, views = (run(spec(10.0), iter(prompts())).records for run in (simulate, simulate_views))
    assert share_in_time(views) == pytest.approx(share_in_time(cores), abs=0.05)


def test_where_all_come_in_time_nothing_changes() -> None:
    rare = [replace(each, arrival_at=2 * each.arrival_at) for each in prompts()]
    outcomes = [
        [(each.request_id, each.ttft) for each in simulate(spec(w), iter(rare)).records]
        for w in (0.0, 10.0)
    ]
    assert outcomes[0] == outcomes[1]
