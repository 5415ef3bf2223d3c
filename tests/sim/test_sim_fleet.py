"""Large fleets: what a request costs to simulate does not grow with the number of instances."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from headway.cluster import Role, UnitId
from headway.core.scheduler.places import Moving, OnUnit
from headway.cost.buckets import NUM_BUCKETS
from headway.presets import find_preset
from headway.sim.cluster import SimCluster
from headway.sim.experiment import UNLIMITED, Conditions, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.spec import ClusterSpec
from headway.sim.views.run import simulate_views
from tests.fakes.sim_clusters import instance, poisson

SMALL, LARGE = 8, 64
RATE = 1.5
"""Requests a second and instance."""


def fleet(preset: str, size: int) -> ClusterSpec:
    kinds = (instance(Role.PREFILL), size // 4), (instance(Role.DECODE), size - size // 4)
    return cluster_spec(find_preset(preset), Conditions(kinds, limits=UNLIMITED))


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of functions, which a slow machine does not change."""
    found = [0]

    def call(frame: object, event: str, arg: object) -> None:
        found[0] += event != "return" and event != "c_return"

    sys.setprofile(call)
    try:
        yield found
    finally:
        sys.setprofile(None)


def calls_per_request(preset: str, size: int, fidelity: str) -> float:
    requests = poisson(3 * size, RATE * size, 3)
    run = simulate if fidelity == "cores" else simulate_views
    with counted() as calls:
        run(fleet(preset, size), iter(requests))
    return calls[0] / len(requests)


@pytest.mark.parametrize("preset", ["vllm-like", "sbs", "tokenscale", "star", "headway"])
def test_a_request_costs_no_more_in_a_large_fleet(preset: str) -> None:
    small, large = (calls_per_request(preset, size, "cores") for size in (SMALL, LARGE))
    assert large < 1.5 * small


def look_at_buckets(cluster: SimCluster) -> None:
    """Compare what was counted as it came with a count of all that live."""
    core = cluster.scheduler_core
    expected: dict[UnitId, list[int]] = {}
    for entry in core._state.tracked.values():
        at = entry.target or entry.at
        if isinstance(entry.place, (OnUnit, Moving)) and at is not None:
            expected.setdefault(at, [0] * NUM_BUCKETS)[entry.bucket] += 1
    counts = core._books.count_buckets()
    for worker in cluster.workers:
        unit = UnitId(worker.worker_id, 0)
        assert counts.of(unit) == expected.get(unit, [0] * NUM_BUCKETS)


def test_requests_by_bucket_are_those_that_live_also_behind_another_leader() -> None:
    looks = 0

    def look(cluster: SimCluster) -> None:
        nonlocal looks
        look_at_buckets(cluster)
        looks += 1

    def watch(cluster: SimCluster) -> None:
        for tenths in range(5, 60):
            cluster.kernel.at(tenths / 10, partial(look, cluster))

    failures = Failure("decode-5", 1.5), Failure("scheduler", 2.0), Failure("prefill-1", 4.5)
    simulate(fleet("tokenscale", 8), poisson(60, 15.0, 2), failures=failures, watch=watch)
    assert looks == 55
