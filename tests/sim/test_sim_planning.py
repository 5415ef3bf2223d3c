"""Instances whose engine plans its own passes, simulated below the live core of their workers."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from headway.cluster import Role
from headway.core.worker.planning_engine import PlanningEngineCore
from headway.errors import HeadwayError
from headway.presets import PRESETS
from headway.sim.cluster import ClusterSpec, SimCluster, SimRequest
from headway.sim.experiment import UNLIMITED, Conditions, Run, cluster_spec, simulate
from headway.sim.failures import Failure
from headway.sim.planning import ENDPOINT, HEADWAY, NATIVE
from headway.sim.records import Record
from headway.sim.scenario import parse_scenario
from tests.fakes.sim_clusters import close, instance, poisson, told

REQUESTS = poisson(24, 3.0, seed=4)
SMALL = """
[[instances]]
role = "unified"
profile = "llama-8b-a100"
[workload]
rate = 5.0
num_requests = 4
[[workload.classes]]
name = "chat"
prompt = 100
answer = 20
"""


def spec_of(preset: str, planner: str, count: int = 2, **changes: object) -> ClusterSpec:
    kind = replace(instance(Role.UNIFIED, **changes), planner=planner)
    return cluster_spec(PRESETS[preset], Conditions(((kind, count),), limits=UNLIMITED))


def ends(run: Run) -> list[tuple[str, int, bool, str]]:
    return [(r.request_id, r.num_tokens, r.finished, r.error) for r in told(list(run.records))]


def records(run: Run) -> list[Record]:
    return list(run.records)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("planner", [NATIVE, ENDPOINT])
def test_every_planner_gives_every_request_the_same_tokens(preset: str, planner: str) -> None:
    ours = ends(simulate(spec_of(preset, HEADWAY), REQUESTS))
    assert ends(simulate(spec_of(preset, planner), REQUESTS)) == ours
    assert len(ours) == len(REQUESTS)
    assert all(finished and not error for _, _, finished, error in ours)


@pytest.mark.parametrize("planner", [NATIVE, ENDPOINT])
def test_the_core_is_the_live_one_and_all_memory_is_free_in_the_end(planner: str) -> None:
    clusters: list[SimCluster] = []
    simulate(spec_of("headway", planner), REQUESTS, watch=clusters.append)
    for worker in clusters[0].workers:
        assert isinstance(worker.core, PlanningEngineCore)
        assert worker.core.num_held == 0
        assert worker.core.loads[0].num_free_blocks == worker.num_blocks


@pytest.mark.parametrize("planner", [NATIVE, ENDPOINT])
def test_where_order_and_memory_decide_nothing_every_token_comes_at_the_same_instant(
    planner: str,
) -> None:
    ours = simulate(spec_of("vllm-like", HEADWAY), REQUESTS)
    close(records(simulate(spec_of("vllm-like", planner), REQUESTS)), records(ours))


def test_preemptions_of_an_engine_that_shows_its_plans_are_counted() -> None:
    crowd = [SimRequest(f"r{n}", 0.1 * n, 200, 400) for n in range(10)]
    shown, ours = (
        simulate(spec_of("vllm-like", planner, 1, kv_capacity_tokens=3000), crowd)
        for planner in (NATIVE, HEADWAY)
    )
    assert ends(shown) == ends(ours)
    assert shown.num_preemptions == ours.num_preemptions > 0


def test_an_engine_orders_by_the_policy_only_where_it_is_native() -> None:
    """A short prompt overtakes long ones that came before it."""
    changes: dict[str, object] = {"chunk_tokens": 64}
    found = {
        planner: {r.request_id: r for r in simulate(spec, REQUESTS).records}
        for planner in (NATIVE, ENDPOINT)
        if (spec := spec_of("uniboost", planner, 1, **changes))
    }
    short = min(REQUESTS[8:], key=lambda request: request.num_prompt_tokens).request_id
    native, plain = found[NATIVE][short].ttft, found[ENDPOINT][short].ttft
    assert native is not None
    assert plain is not None
    assert native < plain


def test_the_window_keeps_a_full_endpoint_busy() -> None:
    """Requests that wait there and here get their places as soon as those that are sent at once."""
    rng, at, crowd = random.Random(7), 0.0, list[SimRequest]()
    for number in range(80):
        at += rng.expovariate(16.0)
        crowd.append(SimRequest(f"r{number}", at, rng.randint(20, 120), rng.randint(5, 200)))
    kind = replace(instance(Role.UNIFIED), planner=ENDPOINT)
    conditions = Conditions(((kind, 1),), limits=UNLIMITED, max_running=4)
    held, sent = (
        simulate(cluster_spec(PRESETS[preset], conditions), crowd)
        for preset in ("headway", "vllm-like")
    )
    assert held.ended_at == pytest.approx(sent.ended_at, rel=0.02)
    waits = [fmean(r.ttft or 0.0 for r in each.records) for each in (held, sent)]
    assert waits[0] == pytest.approx(waits[1], rel=0.02)


@pytest.mark.parametrize("planner", [NATIVE, ENDPOINT])
def test_requests_of_an_instance_that_dies_go_on_elsewhere(planner: str) -> None:
    failures = [Failure("unified-1", 3.0)]
    run = simulate(spec_of("headway", planner), REQUESTS, failures=failures)
    assert ends(run) == ends(simulate(spec_of("headway", HEADWAY), REQUESTS))


def test_a_scenario_names_the_planner_of_its_instances() -> None:
    text = SMALL.replace('role = "unified"', 'role = "unified"\nplanner = "native"')
    ((kind, _),) = parse_scenario(text, "test").conditions.instances
    assert (kind.planner, kind.info("w").kv_layout) == (NATIVE, "")
    ((kind, _),) = parse_scenario(SMALL, "test").conditions.instances
    assert (kind.planner, kind.info("w").kv_layout) == (HEADWAY, "tokens")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ('role = "unified"\nplanner = "vllm"', "planner is 'vllm'; it must be one of headway, "),
        ('role = "decode"\nplanner = "native"', "headway unless the role is unified"),
        ('role = "unified"\nplanner = "native"\nnum_units = 2', "headway unless num_units is 1"),
    ],
)
def test_what_no_engine_plans_is_refused_by_name(given: str, named: str) -> None:
    with pytest.raises(HeadwayError, match=named):
        parse_scenario(SMALL.replace('role = "unified"', given), "test")
