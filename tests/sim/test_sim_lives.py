"""Every simulated request leaves a life whose parts sum exactly to the whole."""

from __future__ import annotations

import pytest

from headway.cluster import Role
from headway.core.gateway.settings import GatewaySettings
from headway.life.moments import MomentKind
from headway.life.parts import PartKind
from headway.life.record import LifeRecord
from headway.sim.cluster import ClusterSpec, SimRequest
from headway.sim.records import Record
from tests.fakes.lives import conserves
from tests.fakes.sim_clusters import cluster_of, disaggregated, instance, poisson, run


def lived(
    spec: ClusterSpec, requests: list[SimRequest]
) -> tuple[dict[str, LifeRecord], dict[str, Record]]:
    records, cluster = run(spec.with_lives(10_000), requests)
    lives = {life.request_id: life for life in cluster.lives}
    return lives, {record.request_id: record for record in records}


SPECS = {
    "disaggregated": disaggregated(),
    "two gateways": disaggregated(num_gateways=2),
    "unified": cluster_of(((instance(Role.UNIFIED), 2),)),
    "one step a pass": cluster_of(((instance(Role.UNIFIED), 1),), max_steps=1),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_parts_of_every_life_sum_exactly_to_the_whole(name: str) -> None:
    lives, records = lived(SPECS[name], poisson(120, 12.0, 5))
    assert set(lives) == set(records)
    for request_id, life in lives.items():
        conserves(life)
        record = records[request_id]
        assert life.status == "stop"
        assert life.tokens.output == record.num_tokens
        assert life.ttft == pytest.approx(record.ttft, abs=2e-6)
        assert life.ttfat == pytest.approx(record.ttfat, abs=2e-6)
        assert life.total / 1e6 == pytest.approx(record.ttlt, abs=2e-6)


def test_what_comes_before_the_first_token_is_neither_decode_nor_unknown() -> None:
    lives, _ = lived(SPECS["disaggregated"], poisson(60, 8.0, 3))
    for life in lives.values():
        before = [p for p in life.parts if p.end <= (life.instants.first_token or 0)]
        kinds = [part.kind for part in before]
        assert PartKind.PREFILL in kinds
        assert set(kinds) <= {
            PartKind.SUBMISSION,
            PartKind.WINDOW,
            PartKind.WAY,
            PartKind.QUEUE,
            PartKind.PREFILL,
        }
        if life.tokens.output > 1:
            after = [part.kind for part in life.parts[len(before) :]]
            assert after[-1] is PartKind.DECODE
            assert PartKind.TRANSFER in after


SHORT_OF_KV = {"kv_capacity_tokens": 3000, "chunk_tokens": 512}
CROWD = [SimRequest(f"r{n}", 0.5 + n / 100, 200, 400) for n in range(12)]


def test_a_preempted_request_says_why_and_what_it_lost() -> None:
    lives, _ = lived(cluster_of(((instance(Role.UNIFIED, **SHORT_OF_KV), 1),)), CROWD)
    for life in lives.values():
        conserves(life)
    preempted = [m for life in lives.values() for m in life.find(MomentKind.PREEMPTED)]
    assert preempted
    assert all(moment.amount > 0 and moment.cause and moment.worker_id for moment in preempted)
    kinds = {part.kind for life in lives.values() for part in life.parts}
    assert kinds >= {PartKind.PREEMPTED, PartKind.RECOMPUTE}


def test_kv_that_comes_back_from_host_memory_is_a_part_of_its_own() -> None:
    host = {"host_capacity_tokens": 8000, "swap_per_token": 1e-6}
    lives, _ = lived(cluster_of(((instance(Role.UNIFIED, **SHORT_OF_KV, **host), 1),)), CROWD)
    for life in lives.values():
        conserves(life)
    swapped = [life for life in lives.values() if life.find(MomentKind.SWAPS_OUT)]
    assert swapped
    assert all(PartKind.SWAP in {p.kind for p in life.parts} for life in swapped)


def test_without_lives_nothing_is_written_down() -> None:
    _, cluster = run(disaggregated(), poisson(5, 8.0, 3))
    assert list(cluster.lives) == []
    assert GatewaySettings().num_lives == 0
