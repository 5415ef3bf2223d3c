"""A leader that dies at any moment, and a successor that reads what it has written down."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.cluster import Role
from headway.core.scheduler.events import Persist, SchedulerAction
from headway.core.worker.events import WorkerEvent
from headway.messages import Dispatch
from headway.request import StreamKey
from tests.fakes.cluster import Cluster
from tests.fakes.cluster_parts import FakeWorker
from tests.fakes.cluster_plans import PATIENT, ROLES, STEP, SUBMIT, TIME, Plan, check, run

ELECT = st.tuples(st.just("elect"), st.integers(0, 3), st.just(0))
PLAN = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, TIME, ELECT), max_size=80)
PROMPT_STORE = replace(PATIENT, graces=replace(PATIENT.graces, memory=1e9))

HANDOFF_BETWEEN_SNAPSHOTS: Plan = [
    ("step", 0, 4),
    ("submit", 1, 2),
    ("submit", 1, 1),
    ("step", 0, 8),
    ("submit", 1, 1),
    ("submit", 1, 1),
    ("elect", 1, 0),
    ("submit", 1, 1),
    ("step", 0, 7),
    ("step", 1, 3),
]
"""A handoff that the old leader ordered ends after its target's snapshot, before its source's."""


class Witness(Cluster):
    """Its store takes writes at once; it sees which attempts workers are given."""

    def perform_scheduler(self, action: SchedulerAction) -> None:
        if isinstance(action, Persist):
            self.write_down(action)
        else:
            super().perform_scheduler(action)

    def to_worker(self, worker: FakeWorker, event: WorkerEvent) -> None:
        if isinstance(event, Dispatch):
            for batch in event.batches:
                for request in batch.requests:
                    self.check_alone(request.key)
        super().to_worker(worker, event)

    def check_alone(self, key: StreamKey) -> None:
        holders = [w for w in self.workers.values() if w.core.find(key) is not None]
        assert not holders, "an attempt runs once at a time"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(roles=ROLES, plan=PLAN, units=st.integers(1, 2))
@example(roles=[Role.PREFILL, Role.DECODE], plan=HANDOFF_BETWEEN_SNAPSHOTS, units=1)
def test_no_leader_runs_an_attempt_that_runs_already(
    roles: list[Role], plan: Plan, units: int
) -> None:
    cluster = Witness(roles, PROMPT_STORE, units=units)
    check(cluster, run(cluster, plan))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(roles=ROLES, plan=PLAN)
def test_what_is_written_down_is_what_is_alive(roles: list[Role], plan: Plan) -> None:
    cluster = Witness(roles, PROMPT_STORE)
    check(cluster, run(cluster, plan))
    remembered = cluster.scheduler._memory._saved
    assert cluster.saved.keys() == remembered.keys(), "nothing else is left when all has ended"
