"""Whatever order things happen in, every client reads its whole answer once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.settings import SchedulerSettings
from headway.policies.packing.flow_control import FlowControl
from tests.fakes.cluster import Cluster
from tests.fakes.cluster_plans import (
    PATIENT,
    ROLES,
    STEP,
    SUBMIT,
    TIME,
    TROUBLE,
    Plan,
    check,
    run,
)

ROUTED = replace(PATIENT, dispatch_params={}, prefix_hits=True)
"""With a router, which needs a dispatch policy by name."""
POLICIES = st.sampled_from(
    [
        PATIENT,
        replace(PATIENT, placement="min-cost"),
        replace(PATIENT, dispatch="immediate", packing="round-robin", placement="round-robin"),
        *(replace(ROUTED, dispatch=name) for name in ("session-hash", "llm-d", "sglang", "preble")),
        replace(ROUTED, dispatch="dynamo", dispatch_params={"temperature": 0.5}),
    ]
)
LEAVE = st.tuples(st.just("leave"), st.integers(0, 12), st.just(0))
CALM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME), max_size=60)
STORM = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, LEAVE, TROUBLE), max_size=80)


@settings(max_examples=150, deadline=None)
@given(roles=ROLES, policies=POLICIES, plan=CALM, units=st.integers(1, 2))
def test_in_calm_weather_every_client_reads_its_answer(
    roles: list[Role], policies: SchedulerSettings, plan: Plan, units: int
) -> None:
    cluster = Cluster(roles, policies, units=units)
    check(cluster, run(cluster, plan))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(roles=ROLES, policies=POLICIES, plan=STORM, units=st.integers(1, 2))
def test_whatever_dies_every_client_reads_its_answer(
    roles: list[Role], policies: SchedulerSettings, plan: Plan, units: int
) -> None:
    cluster = Cluster(roles, policies, units=units)
    check(cluster, run(cluster, plan))


@settings(max_examples=60, deadline=None)
@given(roles=ROLES, plan=CALM)
def test_tight_flow_control_never_loses_a_request_that_it_let_in(
    roles: list[Role], plan: Plan
) -> None:
    tight = FlowControl(num_cycles=1, reject_factor=1e9)
    cluster = Cluster(roles, replace(SchedulerSettings(), flow_control=tight))
    check(cluster, run(cluster, plan))
