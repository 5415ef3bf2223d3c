"""Workers that drain or change their role, at any moment: every client reads its answer once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import MoveLimits, SchedulerSettings
from headway.messages import Handoff
from tests.fakes.cluster import Cluster
from tests.fakes.cluster_plans import (
    PATIENT,
    STEP,
    SUBMIT,
    TIME,
    TROUBLE,
    Plan,
    check,
    go_on,
    run,
)
from tests.fakes.paged import expected_output

ROLES = st.sampled_from(
    [
        [Role.UNIFIED, Role.UNIFIED],
        [Role.PREFILL, Role.DECODE, Role.DECODE],
        [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE],
        [Role.PREFILL, Role.CONVERTIBLE, Role.DECODE],
    ]
)
POLICIES = st.sampled_from(
    [
        PATIENT,
        replace(PATIENT, moves=MoveLimits(per_link=1, rest=0.05)),
        replace(PATIENT, dispatch="immediate", packing="round-robin", placement="round-robin"),
    ]
)
DRAIN = st.tuples(st.just("drain"), st.integers(0, 3), st.just(0))
ROLE = st.tuples(st.just("role"), st.integers(0, 3), st.integers(0, 3))
CALM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, DRAIN, ROLE), max_size=60)
STORM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, DRAIN, ROLE, TROUBLE), max_size=80)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(roles=ROLES, policies=POLICIES, plan=CALM, units=st.integers(1, 2))
def test_drains_and_changed_roles_cost_nobody_a_token(
    roles: list[Role], policies: SchedulerSettings, plan: Plan, units: int
) -> None:
    cluster = Cluster(roles, policies, units=units)
    check(cluster, run(cluster, plan))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(roles=ROLES, policies=POLICIES, plan=STORM, units=st.integers(1, 2))
def test_nor_do_they_while_others_die(
    roles: list[Role], policies: SchedulerSettings, plan: Plan, units: int
) -> None:
    cluster = Cluster(roles, policies, units=units)
    check(cluster, run(cluster, plan))


def decoding_on(cluster: Cluster, place: int) -> int:
    return cluster.workers[cluster.worker_ids[place]].core.loads[0].num_running


def step_until_decoding(cluster: Cluster, place: int, number: int) -> None:
    for _ in range(2000):
        if decoding_on(cluster, place) >= number:
            return
        steps = cluster.steps()
        if not steps:
            cluster.pass_time(0.05)
            continue
        steps[0]()
        cluster.now += 1e-4
        cluster.pass_time(0.0)
    raise AssertionError("they never decode")


@settings(max_examples=50, deadline=None)
@given(number=st.integers(1, 5), length=st.integers(60, 90), per_link=st.integers(1, 4))
def test_a_worker_that_drains_is_empty_long_before_its_requests_end(
    number: int, length: int, per_link: int
) -> None:
    policies = replace(PATIENT, moves=MoveLimits(per_link=per_link))
    cluster = Cluster([Role.PREFILL, Role.DECODE, Role.DECODE], policies, blocks=100)
    cluster.drain(2)
    asked = {}
    for _ in range(number):
        asked[f"r{cluster.num_submitted}"] = 8, length
        cluster.submit(8, length)
    step_until_decoding(cluster, 1, number)
    cluster.kill(2)
    cluster.revive(2)
    cluster.drain(1)
    source = cluster.workers[cluster.worker_ids[1]].core
    for _ in range(100):
        if source.num_held:
            go_on(cluster, 20)
    assert source.num_held == 0
    assert not cluster.ended  # all of them still run, elsewhere
    assert cluster.scheduler.status().counters.num_relocations == number
    cluster.settle()
    for place, (request_id, (num_prompt, max_tokens)) in enumerate(asked.items()):
        expected = expected_output(cluster.prompt(place, num_prompt), max_tokens)
        assert cluster.outputs[request_id] == expected


def test_what_finds_no_room_elsewhere_is_waited_for() -> None:
    cluster = Cluster([Role.PREFILL, Role.DECODE], PATIENT)
    cluster.submit(8, 10)
    step_until_decoding(cluster, 1, 1)
    cluster.drain(1)
    cluster.settle()
    assert cluster.ended == {"r0": "length"}
    assert all(not isinstance(d, Handoff) for d in cluster.scheduler.decisions)
    assert cluster.scheduler.status().counters.num_relocations == 0
