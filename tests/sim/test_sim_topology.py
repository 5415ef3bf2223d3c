"""Autoscaling that changes a cluster's topology while it serves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from headway.policies.pacing.token_pacer import TokenPacer
from headway.presets import PRESETS
from headway.service_class import ServiceClass, Standing
from headway.sim.autoscaling import SimAutoscaler, autoscale
from headway.sim.cluster import SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec
from headway.sim.kernel import Kernel
from headway.sim.network import NetworkParams
from headway.sim.reader_pacing import display_times
from headway.sim.records import Record
from headway.sim.spec import Autoscaling
from headway.sim.worker import InstanceSpec

GPU = replace(load_profile("llama-8b-a100"), chunk_tokens=512, start_up=2.0)
STRICT = Standing(service=ServiceClass("strict", tpot=0.025))


def requests(num: int, standing: Standing) -> Iterator[SimRequest]:
    rng, now = random.Random(1), 0.0
    for number in range(num):
        now += rng.expovariate(45.0)
        yield SimRequest(f"chat-{number}", now, 512, 32, standing=standing)


def run(
    standing: Standing, scaling: str = "headway"
) -> tuple[list[Record], SimAutoscaler, list[str]]:
    """Run four unified instances that may become others; return their roles at the end, too."""
    bounds = Autoscaling(max_prefill=4, max_decode=4, budget=4, scale_down_delay=2.0, max_unified=4)
    conditions = Conditions(
        [(InstanceSpec(Role.UNIFIED, GPU), 4)],
        NetworkParams(GPU.link_bytes_per_s),
        limits=UNLIMITED,
        policies={"scaling": scaling},
        params={"scaling": {"convertibles": False}},
        autoscaling=bounds,
    )
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, cluster_spec(PRESETS["headway"], conditions), records.append)
    scaler = autoscale(cluster)
    cluster.feed(requests(700, standing))
    while cluster.is_busy and kernel.now < 100.0:
        kernel.run(kernel.now + 1.0)
    roles = sorted(worker.spec.role.value for worker in cluster.workers)
    assert len(roles) <= 4, "no instance was started beside them"
    return records, scaler, roles


def test_a_strict_promise_splits_the_instances_and_loses_no_request() -> None:
    records, scaler, roles = run(STRICT)
    assert [record.finished for record in records] == [True] * 700
    assert all(record.num_tokens == 32 for record in records)
    assert scaler.history[0][1].num_unified == 4
    assert scaler.history[-1][1].num_prefill >= 1
    assert {"prefill", "decode"} <= set(roles)


def test_without_a_promise_they_stay_unified() -> None:
    records, _, roles = run(Standing())
    assert all(record.finished for record in records)
    assert set(roles) == {"unified"}


def test_a_policy_that_splits_only_needs_prefillers_and_decoders() -> None:
    with pytest.raises(HeadwayError, match="prefill and decode"):
        run(STRICT, "tokenscale")


def test_a_class_sets_its_readers_pace_in_the_simulator_as_live() -> None:
    came_at = np.array([0.0, 0.01, 0.02, 1.0])
    assert display_times(TokenPacer(), came_at, 0.025).tolist() == [0.0, 0.025, 0.05, 1.0]
    assert display_times(TokenPacer(), came_at).tolist() == [0.0, 0.1, 0.2, 1.0]
