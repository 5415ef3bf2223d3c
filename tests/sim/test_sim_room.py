"""Chats start at once on a unified instance that is full of long reasoning, and nobody thrashes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.presets import find_preset
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, Run, cluster_spec, simulate
from headway.sim.network import NetworkParams
from headway.sim.worker import InstanceSpec

# Here no long request joins the critical: with a shorter T, chats wait behind those that have.
PROFILE = replace(
    load_profile("qwen-32b-h100-96"), kv_capacity_tokens=8_000, host_capacity_tokens=40_000
)
LONG = [SimRequest(f"long-{n}", 0.1 * n, 400, 2_400, 2_200) for n in range(8)]
CHATS = [SimRequest(f"chat-{n}", 40.0 + 2.0 * n, 300, 100) for n in range(10)]
"""They come when the long have filled the blocks."""


def run(batching: str, **params: object) -> Run:
    """Simulate the same requests in an order of batching."""
    conditions = Conditions(
        [(InstanceSpec(Role.UNIFIED, PROFILE), 1)],
        NetworkParams(PROFILE.link_bytes_per_s),
        policies={"batching": batching},
        params={"batching": params},
    )
    return simulate(cluster_spec(find_preset("headway"), conditions), iter(LONG + CHATS))


def first_tokens(found: Run) -> list[float]:
    return [each.ttft or 0.0 for each in found.records if each.request_id.startswith("chat")]


@pytest.fixture(scope="module")
def headway() -> Run:
    return run("headway", unread_wait=inf)


def test_chats_have_their_first_token_in_a_pass_or_two(headway: Run) -> None:
    assert max(first_tokens(headway)) < 0.5 < 5.0 < max(first_tokens(run("fcfs")))


def test_everybody_ends_and_few_are_preempted(headway: Run) -> None:
    assert all(each.finished for each in headway.records)
    assert len(headway.records) == len(LONG + CHATS)
    assert headway.num_preemptions <= len(LONG + CHATS)
