"""Workers that drain or change their role, at any moment: every client reads its answer once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import MoveLimits, SchedulerSettings
from headway.messages import Handoff
from tests.fakes.cluster import Cluster
from tests.fakes.cluster_plans import PATIENT, STEP, SUBMIT, TIME, check, trouble
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
TROUBLE = st.tuples(
    st.sampled_from(["kill", "revive", "blip-worker", "blip-gateway", "elect"]),
    st.integers(0, 3),
    st.just(0),
)
CALM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, DRAIN, ROLE), max_size=60)
STORM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, DRAIN, ROLE, TROUBLE), max_size=80)
Plan = list[tuple[str, int, int]]


def run(cluster: Cluster, plan: Plan) -> dict[str, tuple[int, int]]:
    """Follow the plan; at its end all roles are what they were, and who drained is back."""
    asked: dict[str, tuple[int, int]] = {}
    first_roles = list(cluster.roles)
    for name, first, second in plan:
        place = first % len(cluster.roles)
        if name == "submit":
            asked[f"r{cluster.num_submitted}"] = first, second
            cluster.submit(first, second)
        elif name == "step":
            for _ in range(second):
                steps = cluster.steps()
                if steps:
                    steps[first % len(steps)]()
            cluster.end_drains()
        elif name == "time":
            cluster.pass_time(first / 100)
        elif name == "drain":
            cluster.drain(place)
        elif name == "role":
            cluster.change_role(place, list(Role)[second])
        else:
            trouble(cluster, name, first)
    for place, role in enumerate(first_roles):
        cluster.change_role(place, role)
    cluster.roles = first_roles
    for place in range(len(cluster.roles)):
        cluster.revive(place)
    settle(cluster)
    for _ in cluster.roles:
        asked[f"r{cluster.num_submitted}"] = 30, 2
        cluster.submit(30, 2)
    settle(cluster)
    return asked


def settle(cluster: Cluster) -> None:
    """Drains end by themselves; who has gone is started again."""
    for _ in range(1000):
        cluster.end_drains()
        for place in range(len(cluster.roles)):
            cluster.revive(place)
        if not cluster.draining:
            cluster.settle()
            return
        go_on(cluster, 100)
    raise AssertionError("a worker that drains never gets rid of what it holds")


def go_on(cluster: Cluster, num_steps: int) -> None:
    for turn in range(num_steps):
        steps = cluster.steps()
        if steps:
            steps[turn % len(steps)]()
        cluster.now += 1e-4
        cluster.pass_time(0.0 if steps else 0.1)


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
