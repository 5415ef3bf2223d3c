"""Several gateways, and a leader that dies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.cluster import SimCluster
from headway.sim.experiment import Conditions, Run, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.records import Record
from tests.fakes.sim_clusters import instance, poisson

CONDITIONS = Conditions(((instance(Role.PREFILL), 1), (instance(Role.DECODE), 2)))


def simulated(preset: str, *deaths: float, num_gateways: int = 1) -> Run:
    conditions = replace(CONDITIONS, num_gateways=num_gateways)
    failures = [Failure("scheduler", at) for at in deaths]
    requests = poisson(80, 8.0, 3)
    found = simulate(cluster_spec(PRESETS[preset], conditions), requests, failures=failures)
    tokens = {r.request_id: r.num_output_tokens for r in requests}
    assert all(record.finished for record in found.records)
    assert {r.request_id: r.num_tokens for r in found.records} == tokens
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_every_request_ends_once_when_the_leader_dies_twice(preset: str) -> None:
    simulated(preset, 3.0, 8.0, num_gateways=3)


def test_requests_wait_for_the_next_leader_and_running_ones_go_on() -> None:
    before, after = simulated("vllm-like").records, simulated("vllm-like", 3.0).records
    known = {record.request_id: record for record in before}

    def waited(record: Record) -> float:
        return (record.ttft or 0.0) - (known[record.request_id].ttft or 0.0)

    came = [record for record in after if 3.0 < record.arrival_at < 4.0]
    assert came
    assert all(waited(record) > 0.9 for record in came)
    ended = [record for record in before if 3.0 < (record.last_token_at or 0.0) < 3.2]
    assert ended
    by_id = {record.request_id: record for record in after}
    assert all(by_id[r.request_id].last_token_at == r.last_token_at for r in ended)


def test_nobody_dies_while_nobody_leads() -> None:
    once, twice = simulated("sbs", 3.0), simulated("sbs", 3.0, 4.0)
    assert repr(once.records) == repr(twice.records)


def test_gateways_take_turns_and_each_request_is_one_gateways() -> None:
    assert simulated("sbs", num_gateways=4).ended_at == pytest.approx(
        simulated("sbs").ended_at, rel=0.2
    )


def test_a_leader_does_not_come_back() -> None:
    with pytest.raises(HeadwayError, match="a standby leads"):
        Failure("scheduler", 1.0, back_after=2.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_requests_of_a_gateway_that_dies_are_lost_and_all_others_end(preset: str) -> None:
    conditions = replace(CONDITIONS, num_gateways=3)
    requests = poisson(80, 8.0, 3)
    left: list[int] = []

    def watch(cluster: SimCluster) -> None:
        cluster.kernel.at(60.0, lambda: left.extend(w.core.num_held for w in cluster.workers))

    failures = [Failure("gateway-2", 4.0), Failure("scheduler", 6.0)]
    spec = cluster_spec(PRESETS[preset], conditions)
    run = simulate(spec, requests, failures=failures, watch=watch)
    lost = [record for record in run.records if not record.finished]
    assert len(run.records) == len(requests)
    assert 0 < len(lost) < 40
    assert {record.error for record in lost} == {"its gateway gateway-2 died"}
    assert all(record.arrival_at <= 4.0 for record in lost)
    assert not any(left)


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ([Failure("gateway", 1.0), Failure("gateway-2", 2.0)], "beside another"),
        ([Failure("gateway-7", 1.0)], "a gateway that lives"),
    ],
)
def test_a_gateway_that_cannot_die_is_refused(failures: list[Failure], said: str) -> None:
    spec = cluster_spec(PRESETS["vllm-like"], replace(CONDITIONS, num_gateways=2))
    with pytest.raises(HeadwayError, match=said):
        simulate(spec, poisson(40, 8.0, 3), failures=failures)


def test_a_gateway_does_not_come_back() -> None:
    with pytest.raises(HeadwayError, match="the other gateways go on"):
        Failure("gateway-2", 1.0, back_after=2.0)
