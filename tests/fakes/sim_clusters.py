"""Small simulated clusters for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from headway.cluster import Role
from headway.core.worker.settings import WorkerSettings
from headway.cost.pass_time import PassTime
from headway.cost.schema import Profile
from headway.sim.cluster import SIMULATED_WORKER, ClusterSpec, SimCluster, SimRequest
from headway.sim.kernel import Kernel
from headway.sim.records import Record
from headway.sim.worker import InstanceSpec

PASS_TIME = PassTime(0.012, per_prefill_token=71e-6, per_request=1e-4, per_kv_token=1e-7)


def instance(role: Role, **changes: object) -> InstanceSpec:
    fields: dict[str, object] = {
        "name": "small",
        "model": "model",
        "device": "device",
        "dtype": "bfloat16",
        "parallelism": "none",
        "origin": "made up for tests",
        "pass_time": PASS_TIME,
        "kv_capacity_tokens": 20_000,
        "kv_bytes_per_token": 131_072,
        "chunk_tokens": 1024,
    }
    return InstanceSpec(role, Profile(**{**fields, **changes}))  # type: ignore[arg-type]  # by name


def disaggregated(num_prefill: int = 1, num_decode: int = 2, **changes: object) -> ClusterSpec:
    instances = ((instance(Role.PREFILL), num_prefill), (instance(Role.DECODE), num_decode))
    return cluster_of(instances, **changes)


def cluster_of(instances: Sequence[tuple[InstanceSpec, int]], **changes: object) -> ClusterSpec:
    """A cluster with other fields of its own, or of its workers' settings."""
    worker = {f.name: changes.pop(f.name) for f in fields(WorkerSettings) if f.name in changes}
    settings = replace(SIMULATED_WORKER, **worker)  # type: ignore[arg-type]  # fields by name
    return ClusterSpec(instances, worker=settings, **changes)  # type: ignore[arg-type]  # by name


def one_step(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster, whose workers never leap over passes."""
    return replace(spec, worker=replace(spec.worker, max_steps=1))


def poisson(num_requests: int, rate: float, seed: int) -> list[SimRequest]:
    rng, now, requests = random.Random(seed), 0.5, []
    for number in range(num_requests):
        now += rng.expovariate(rate)
        num_reasoning = int(rng.lognormvariate(3.5, 1)) if rng.random() < 0.4 else 0
        requests.append(
            SimRequest(
                request_id=f"r{number}",
                arrival_at=now,
                num_prompt_tokens=1 + int(rng.lognormvariate(5.5, 1)) % 4000,
                num_output_tokens=num_reasoning + 1 + int(rng.lognormvariate(4, 1)) % 2000,
                num_reasoning_tokens=num_reasoning,
            )
        )
    return requests


def run(
    spec: ClusterSpec, requests: Sequence[SimRequest], until: float = 1e6
) -> tuple[list[Record], SimCluster]:
    kernel, records = Kernel(), list[Record]()
    cluster = SimCluster(kernel, spec, records.append)
    for request in requests:
        cluster.submit(request)
    kernel.run(until)
    return records, cluster


def told(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: r.request_id)


def close(one: list[Record], other: list[Record]) -> None:
    assert [r.request_id for r in told(one)] == [r.request_id for r in told(other)]
    for a, b in zip(told(one), told(other), strict=True):
        assert (a.num_tokens, a.finished, a.error) == (b.num_tokens, b.finished, b.error)
        for name in ("ttft", "ttfat", "ttlt"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-9)
