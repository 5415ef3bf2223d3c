"""The fidelity ``policies`` beside the cores, on the same arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cli import main
from headway.cluster import Role
from headway.core.scheduler.instance import Instance
from headway.cost.pass_time import PassTime
from headway.cost.velocity import LimitsInForce, TokenLimits
from headway.errors import HeadwayError
from headway.metrics import percentile
from headway.policies.dispatch import InstanceLoad
from headway.presets import PRESETS, find_preset
from headway.service_class import ServiceClass, Standing
from headway.sim.clients import SimRequest
from headway.sim.experiment import Conditions, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.records import Record
from headway.sim.scenario import load_scenario, scenario_names
from headway.sim.spec import ClusterSpec
from headway.sim.summary import keeps
from headway.sim.views.cluster import ViewCluster
from headway.sim.views.load import LoadView
from headway.sim.views.run import require_views, simulate_views
from headway.sim.views.unit import Unit
from headway.sim.workload import SloLimits
from tests.fakes.sim_clusters import instance, poisson

AGREEMENT = 0.02
CONVERTS: dict[str, object] = {"convertible_chunk_tokens": 512}
OPEN = tuple(n for n in scenario_names() if load_scenario(n).workload.sessions is None)
CLOSED = tuple(n for n in scenario_names() if n not in OPEN)
PRESETS_OVER_VIEWS = ("vllm-like", "sbs", "uniboost", "star", "tokenscale", "headway")
ROLES = ((Role.PREFILL, Role.DECODE), (Role.UNIFIED,), (Role.PREFILL, Role.CONVERTIBLE))


def attainment(records: Sequence[Record], slo: SloLimits) -> float:
    return sum(keeps(record, slo) for record in records) / len(records)


def near(share: float, ordered: Sequence[float]) -> tuple[float, float]:
    """Bounds of a percentile: 2 % around it, and the ranks that a sample of this size tells."""
    error = math.sqrt(share * (1 - share) / len(ordered))
    low, high = (percentile(ordered, min(1.0, share + sign * error)) for sign in (-1, 1))
    return low * (1 - AGREEMENT), high * (1 + AGREEMENT)


def both(spec: ClusterSpec, requests: Sequence[SimRequest], slo: SloLimits) -> None:
    cores = simulate(spec, iter(requests)).records
    views = simulate_views(spec, iter(requests)).records
    assert sorted(r.request_id for r in views) == sorted(r.request_id for r in cores)
    assert attainment(views, slo) == pytest.approx(attainment(cores, slo), abs=AGREEMENT)
    for metric in ("ttft", "ttfat", "tpot", "ttlt"):
        expected, found = (
            sorted(v for r in records if (v := getattr(r, metric)) is not None)
            for records in (cores, views)
        )
        if not expected:
            continue
        assert percentile(found, 0.5) == pytest.approx(percentile(expected, 0.5), rel=AGREEMENT)
        low, high = near(0.99, expected)
        assert low <= percentile(found, 0.99) <= high, metric


@pytest.mark.parametrize("preset", PRESETS_OVER_VIEWS)
@pytest.mark.parametrize("name", OPEN)
def test_both_fidelities_agree_on_every_shipped_scenario_whose_arrivals_are_known(
    name: str, preset: str
) -> None:
    scenario = load_scenario(name)
    num_requests = 200 if preset in ("uniboost", "star", "headway") else 500
    workload = replace(scenario.workload, num_requests=num_requests, seconds=None)
    spec = cluster_spec(find_preset(preset), scenario.conditions)
    both(spec, list(workload.requests(1)), scenario.slo)


@pytest.mark.parametrize("name", CLOSED)
def test_sessions_in_a_closed_loop_are_refused_over_views(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", name, "--preset", "sbs", "--fidelity", "policies"]) == 2
    assert "only the cores' fidelity runs them" in capsys.readouterr().err


@pytest.mark.parametrize("roles", ROLES)
def test_every_role_is_had(roles: Sequence[Role]) -> None:
    kinds = [(instance(role, kv_capacity_tokens=200_000, **CONVERTS), 2) for role in roles]
    spec = cluster_spec(PRESETS["vllm-like"], Conditions(kinds))
    both(spec, poisson(200, 6.0, 1), SloLimits(ttft=1.0))


def test_a_prefillers_longer_chunk_attends_within_itself_on_both() -> None:
    own = {"prefill_chunk_tokens": 8192, "pass_time": PassTime(0.01, 2e-5, 1e-4, 0.0, 1e-8)}
    roles = (Role.PREFILL, Role.DECODE)
    kinds = [(instance(role, kv_capacity_tokens=200_000, **own), 1) for role in roles]
    long = [SimRequest(str(n), n / 2, 12_000, 20) for n in range(40)]
    spec = cluster_spec(PRESETS["vllm-like"], Conditions(kinds))
    both(spec, long, SloLimits(ttft=1.0))


@pytest.mark.parametrize("own", [100, 5000])
def test_a_convertible_keeps_as_much_memory_for_prompts_on_both(own: int) -> None:
    kind = instance(Role.CONVERTIBLE, convertible_chunk_tokens=own)
    info, limits = kind.info("a"), LimitsInForce(TokenLimits())
    unit = Unit(LoadView(info), info, 0, 0.1, 0, limits)
    unit.refresh()
    (expected,) = Instance(info, 0.1, limits).decode_units()
    assert unit.view.reserved_tokens == expected.reserved_tokens


@pytest.mark.parametrize("preset", ["tokenscale", "headway", "uniboost"])
def test_convertible_decoders_decode_first_on_both(preset: str) -> None:
    roles = ((Role.PREFILL, 1), (Role.CONVERTIBLE, 2))
    kinds = [(instance(role, kv_capacity_tokens=200_000, **CONVERTS), n) for role, n in roles]
    spec = cluster_spec(PRESETS[preset], Conditions(kinds))
    both(spec, poisson(200, 6.0, 1), SloLimits(ttft=1.0))


@pytest.mark.parametrize("host_tokens", [0, 8000])
def test_who_finds_no_memory_is_preempted_and_ends_all_the_same(host_tokens: int) -> None:
    decode = instance(
        Role.DECODE, kv_capacity_tokens=6000, host_capacity_tokens=host_tokens, swap_per_token=1e-6
    )
    spec = cluster_spec(
        PRESETS["vllm-like"], Conditions(((instance(Role.PREFILL), 1), (decode, 2)))
    )
    requests = [SimRequest(f"r{n}", 0.05 * n, 300, 900 + n) for n in range(60)]
    run = simulate_views(spec, iter(requests))
    assert run.num_preemptions > 0
    assert sorted(r.request_id for r in run.records) == sorted(r.request_id for r in requests)
    assert all(r.finished and r.num_tokens == r.num_output_tokens for r in run.records)


@pytest.mark.parametrize("preset", ["uniboost", "headway"])
def test_an_order_that_says_who_loses_memory_is_refused_when_it_is_short(preset: str) -> None:
    decode = instance(Role.DECODE, kv_capacity_tokens=6000)
    spec = cluster_spec(PRESETS[preset], Conditions(((instance(Role.PREFILL), 1), (decode, 2))))
    requests = [SimRequest(f"r{n}", 0.05 * n, 300, 900 + n) for n in range(60)]
    with pytest.raises(HeadwayError, match=f"short of memory, and the order of batching {preset}"):
        simulate_views(spec, iter(requests))


def test_running_requests_move_to_even_out_loads() -> None:
    kinds = ((instance(Role.PREFILL), 1), (instance(Role.DECODE, kv_capacity_tokens=60_000), 4))
    conditions = Conditions(kinds, policies={"placement": "round-robin"})
    spec = cluster_spec(PRESETS["star"], conditions)
    requests = [SimRequest(f"r{n}", 0.3 * n, 200, 3000 if n % 4 == 0 else 20) for n in range(60)]
    ended: list[Record] = []
    cluster = ViewCluster(spec, ended.append)
    cluster.run(requests)
    assert cluster.num_moves > 0
    assert len(ended) == len(requests)
    memories = [unit.memory for each in cluster.instances for unit in each.units]
    assert all(memory.free == memory.capacity for memory in memories)


@pytest.mark.parametrize("yielding", [(), (0, 4, 8), (2, 6, 10)])
def test_on_both_those_move_first_whose_class_yields(yielding: Sequence[int]) -> None:
    kinds = ((instance(Role.PREFILL), 1), (instance(Role.DECODE, kv_capacity_tokens=60_000), 2))
    conditions = Conditions(
        kinds,
        policies={"placement": "round-robin", "rescheduling": "current-load"},
        params={"rescheduling": {"interval": 4.0, "theta": 0.01, "floor": 0.0}},
    )
    spec = cluster_spec(PRESETS["vllm-like"], conditions)
    batch = Standing(service=ServiceClass("batch", yields=True))
    requests = [  # the long ones fall on one decoder, and differ in nothing but their class
        SimRequest(f"r{n}", 0.5 + 0.05 * n, 600, 5 if n % 2 else 900, standing=standing)
        for n in range(12)
        for standing in [batch if n in yielding else Standing()]
    ]
    cores = simulate(spec, iter(requests), keeps_decisions=True)
    moves = (d.chosen for d in cores.decisions if d.question == "rescheduling")
    moved = [chosen.request_id for each in moves for chosen in each]
    assert len(moved) >= 2
    assert set(moved[:2]) <= {f"r{n}" for n in yielding or range(12)}
    ttlt = {record.request_id: record.ttlt for record in cores.records}
    views = {r.request_id: r.ttlt for r in simulate_views(spec, iter(requests)).records}
    assert views == pytest.approx(ttlt, rel=0.01)


@pytest.mark.parametrize("yields", [False, True])
def test_on_both_a_crowd_whose_class_yields_is_no_burst(yields: bool) -> None:
    roles = (Role.PREFILL, Role.CONVERTIBLE)
    kinds = [(instance(role, kv_capacity_tokens=200_000, **CONVERTS), 1) for role in roles]
    spec = cluster_spec(PRESETS["tokenscale"], Conditions(kinds))
    standing = Standing(service=ServiceClass("any", yields=yields))
    steady = [SimRequest(f"r{n}", float(n), 300, 40) for n in range(30)]
    crowd = [SimRequest(f"c{n}", 30 + n / 1000, 3000, 40, standing=standing) for n in range(40)]
    cores, views = (
        {record.request_id: record.ttft for record in run(spec, iter([*steady, *crowd])).records}
        for run in (simulate, simulate_views)
    )
    assert views == pytest.approx(cores, rel=0.001)


def test_units_in_lock_step_decode_as_on_the_cores() -> None:
    kinds = ((instance(Role.PREFILL, num_units=2), 1), (instance(Role.DECODE, num_units=4), 1))
    spec = cluster_spec(PRESETS["sbs"], Conditions(kinds))
    both(spec, poisson(100, 4.0, 2), SloLimits(ttft=1.0))


@pytest.mark.parametrize(
    ("preset", "reason"),
    [
        ("uniboost", "unified instances in the order of batching uniboost"),
        ("pascal", "the readers that placement pascal reads"),
        ("headway", "unified instances in the order of batching headway"),
    ],
)
def test_what_views_do_not_have_is_refused_by_name(preset: str, reason: str) -> None:
    spec = cluster_spec(PRESETS[preset], Conditions(((instance(Role.UNIFIED), 1),)))
    with pytest.raises(HeadwayError, match=reason):
        require_views(spec)


def test_instances_that_die_are_refused() -> None:
    spec = cluster_spec(PRESETS["vllm-like"], Conditions(((instance(Role.UNIFIED), 1),)))
    with pytest.raises(HeadwayError, match="instances that die"):
        require_views(spec, [Failure("unified-1", 3.0)])


def test_prompts_with_shared_beginnings_are_refused() -> None:
    spec = cluster_spec(PRESETS["vllm-like"], Conditions(((instance(Role.UNIFIED), 1),)))
    with pytest.raises(HeadwayError, match="request r names blocks"):
        simulate_views(spec, [SimRequest("r", 0.0, 600, 2, prefix_hashes=(1,))])


def test_a_dispatch_policy_finds_every_attribute_of_a_load() -> None:
    assert [f.name for f in fields(InstanceLoad) if not hasattr(LoadView, f.name)] == []


def test_records_can_be_taken_as_they_come() -> None:
    taken: list[Record] = []
    spec = cluster_spec(PRESETS["sbs"], Conditions(((instance(Role.UNIFIED), 1),)))
    run = simulate_views(spec, poisson(30, 6.0, 2), ended=taken.append)
    assert (len(taken), len(run.records)) == (30, 0)
    assert all(record.as_served() is None for record in taken)


def test_the_bench_measures_either_fidelity(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sim", "--seconds", "2", "--fidelity", "policies"]) == 0
    assert "cores                      none" in capsys.readouterr().out


def test_a_command_runs_either_fidelity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["simulate", "sbs-prefill", "--fidelity", "policies", "--processes", "1"]
    assert main([*command, "--preset", "sbs", "--stream"]) == 0
    assert "sbs" in capsys.readouterr().out
    assert main([*command, "--preset", "pascal"]) == 1
    assert "the readers that placement pascal reads" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "cores with --out" in capsys.readouterr().err
