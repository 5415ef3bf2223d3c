"""The scheduler's core under any sequence of messages, sensible or not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cluster import Role, UnitLoad
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    SchedulerAction,
    SchedulerEvent,
    SendToGateway,
    SendToWorker,
    WorkerGone,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import (
    Accepted,
    CancelStream,
    Dispatch,
    EndForward,
    FinishedRequest,
    Handoff,
    HandoffResult,
    HeldRequest,
    Rejected,
    Snapshot,
)
from headway.policies.packing.flow_control import FlowControl
from headway.request import FinishReason, Request
from tests.fakes.scheduler_text import idle_loads, key, make_info, make_request

ROLES = {"p": Role.PREFILL, "u": Role.UNIFIED, "d": Role.DECODE}
INFOS = {name: make_info(name, role, units=2, blocks=30) for name, role in ROLES.items()}
WORKERS = st.sampled_from(sorted(INFOS))
STREAMS = st.integers(1, 12)
HELD = st.builds(
    lambda stream_id, unit, tokens, says: HeldRequest(
        key(stream_id), f"r{stream_id}", unit, tokens, *says
    ),
    STREAMS,
    st.integers(0, 2),
    st.integers(12, 14),
    st.sampled_from([(True,), (False,), (False, True), (False, False, True), (False, True, True)]),
)
LOADS = st.builds(
    lambda queued, running, free, yielding: (
        replace(
            UnitLoad(0, queued, running, 10 * running, free),
            num_yielding_blocks=yielding[0],
            yielding_tokens=yielding[1],
        ),
        UnitLoad(1, 0, 0, 0, 30),
    ),
    st.integers(0, 150),
    st.integers(0, 3),
    st.integers(0, 30),
    st.sampled_from([(0, 0), (0, 0), (10, 0), (25, 100)]),
)
FINISHED = st.builds(
    lambda stream_id, reason: FinishedRequest(key(stream_id), 0, 10, 2, reason),
    STREAMS,
    st.sampled_from(FinishReason),
)
DISPATCH_IDS = st.integers(1, 12).map(lambda n: 1 << 32 | n)
REPORT = st.builds(
    EndForward,
    st.just(1),
    st.sampled_from([0.0, 0.05, 0.2, -1.0, float("nan"), float("inf")]),
    st.lists(DISPATCH_IDS, max_size=2).map(tuple),
    LOADS,
    st.lists(HELD, max_size=2).map(tuple),
    st.lists(FINISHED, max_size=2).map(tuple),
)
RESULT = st.builds(
    HandoffResult, STREAMS.map(key), WORKERS, st.integers(0, 1), st.booleans(), st.booleans()
)
SUBMIT = st.builds(
    lambda stream_id, length, attempt, patience: make_request(
        stream_id,
        length,
        request_id=f"r{stream_id % 8}",
        attempt=attempt,
        deadline_at=100.0 + patience,
        reasons=stream_id % 3 == 0,
    ),
    STREAMS,
    st.integers(1, 290),
    st.integers(0, 2),
    st.sampled_from([0.5, 3.0, 1e9]),
)
EVENTS = st.one_of(
    SUBMIT,
    SUBMIT,
    SUBMIT,
    st.builds(CancelStream, STREAMS.map(key)),
    st.just(GatewayConnected("g")),
    st.just(GatewayDisconnected("g")),
    st.builds(WorkerGone, WORKERS, st.just("it died")),
    st.builds(lambda w: WorkerReported(w, Snapshot(INFOS[w], idle_loads(INFOS[w]))), WORKERS),
    st.builds(
        lambda w, held: WorkerReported(w, Snapshot(INFOS[w], idle_loads(INFOS[w]), tuple(held))),
        WORKERS,
        st.lists(HELD, max_size=3, unique_by=lambda h: h.key),
    ),
    st.builds(WorkerReported, WORKERS, st.builds(Accepted, DISPATCH_IDS)),
    st.builds(WorkerReported, WORKERS, REPORT),
    st.builds(WorkerReported, WORKERS, RESULT),
)
STEPS = st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.001, 0.03, 0.3, 6.0])), max_size=60)
SETTINGS = SchedulerSettings(
    flow_control=FlowControl(num_cycles=3), max_waiting=6, num_keys_remembered=1000
)


def play(steps: list[tuple[SchedulerEvent, float]]) -> list[tuple[float, SchedulerAction]]:
    core, now = SchedulerCore(SETTINGS), 100.0
    log: list[tuple[float, SchedulerAction]] = []
    opening: list[tuple[SchedulerEvent, float]] = [
        (Elected(1, ()), 0.0),
        (GatewayConnected("g"), 0),
    ]
    for event, delay in opening + steps:
        until = now + delay
        for _ in range(1000):
            wakeup = core.next_wakeup
            if wakeup is None or wakeup > until:
                break
            now = max(now, wakeup)
            log += [(now, action) for action in core.wake(now=now)]
        else:
            raise AssertionError("the core asks to be woken without end")
        now = until
        log += [(now, action) for action in core.handle(event, now=now)]
        check_books(core)
    return log


def check_books(core: SchedulerCore) -> None:
    """No row of the state matrix is out of its range."""
    for row in core.matrix():
        assert row.capacity <= INFOS[row.unit.worker_id].chunk_tokens
        assert row.num_requests >= 0
        assert row.kv_tokens >= 0
    status = core.status()
    assert all(0 <= pool.num_at_door <= pool.num_waiting for pool in status.pools)
    assert all(pool.backlog_tokens >= pool.num_waiting for pool in status.pools)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_the_same_events_lead_to_the_same_actions(
    steps: list[tuple[SchedulerEvent, float]],
) -> None:
    assert repr(play(steps)) == repr(play(steps))


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_no_attempt_is_dispatched_twice_whatever_workers_say(
    steps: list[tuple[SchedulerEvent, float]],
) -> None:
    dispatched: set[int] = set()
    refused: set[int] = set()
    for _, action in play(steps):
        if isinstance(action, SendToWorker) and isinstance(action.message, Dispatch):
            for batch in action.message.batches:
                for request in batch.requests:
                    assert request.stream_id not in dispatched, "an attempt runs once"
                    assert request.stream_id not in refused, "what was refused does not run"
                    dispatched.add(request.stream_id)
        elif isinstance(action, SendToGateway) and isinstance(action.message, Rejected):
            refused.add(action.message.key.stream_id)
            assert action.message.key.stream_id not in dispatched


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_orders_go_to_workers_of_the_right_role_and_ids_never_repeat(
    steps: list[tuple[SchedulerEvent, float]],
) -> None:
    seen: set[int] = set()
    for _, action in play(steps):
        if not isinstance(action, SendToWorker):
            continue
        if isinstance(action.message, Dispatch):
            assert ROLES[action.worker_id].prefills
            assert action.message.dispatch_id not in seen
            seen.add(action.message.dispatch_id)
        elif isinstance(action.message, Handoff):
            assert ROLES[action.message.target_worker_id].decodes


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_what_yields_to_a_readers_first_token_is_no_room_for_others(
    steps: list[tuple[SchedulerEvent, float]],
) -> None:
    """Where nobody opens an answer all is as under an order that yields nothing."""
    without_readers = [(_reasoning(event), delay) for event, delay in steps]
    plain = [(_without_yielding(event), delay) for event, delay in without_readers]
    assert repr(play(without_readers)) == repr(play(plain))


def _reasoning(event: SchedulerEvent) -> SchedulerEvent:
    return replace(event, reasons=True) if isinstance(event, Request) else event


def _without_yielding(event: SchedulerEvent) -> SchedulerEvent:
    if not (isinstance(event, WorkerReported) and isinstance(event.message, EndForward)):
        return event
    loads = tuple(
        replace(load, num_yielding_blocks=0, yielding_tokens=0) for load in event.message.loads
    )
    return replace(event, message=replace(event.message, loads=loads))


def test_a_report_of_a_unit_that_the_worker_lacks_ends_there() -> None:
    """The properties found it: a move to unit 2 of two outlived its worker."""
    arriving = HeldRequest(key(3), "r3", 2, 12, True, False, True)
    waits = HeldRequest(key(3), "r3", 0, 12, True)
    log = play(
        [
            (WorkerReported("d", Snapshot(INFOS["d"], idle_loads(INFOS["d"]))), 0.0),
            (WorkerReported("u", Snapshot(INFOS["u"], idle_loads(INFOS["u"]), (arriving,))), 0.0),
            (WorkerGone("u", "it died"), 0.0),
            (WorkerReported("d", Snapshot(INFOS["d"], idle_loads(INFOS["d"]), (waits,))), 0.0),
        ]
    )
    assert (100.0, SendToWorker("u", CancelStream(key(3)))) in log
