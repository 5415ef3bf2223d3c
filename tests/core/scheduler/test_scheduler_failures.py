"""The scheduler's core: workers that die or come back, and new leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.cluster import Role
from headway.core.defaults import DOUBTFUL
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    GatewayDisconnected,
    Persist,
    SchedulerAction,
    SendToGateway,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.messages import (
    CancelHandoff,
    CancelStream,
    Dispatch,
    EndForward,
    FinishedRequest,
    Handoff,
    HeldRequest,
    Lost,
    ToGateway,
    WorkerReached,
)
from headway.request import FinishReason
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, short_pass


def make_scheduler(*workers: tuple[str, Role]) -> SchedulerHarness:
    scheduler = SchedulerHarness(short_pass())
    for worker_id, role in workers:
        scheduler.connect(make_info(worker_id, role))
    return scheduler


def moving() -> SchedulerHarness:
    """Request 1 is on its way from p to d."""
    scheduler = make_scheduler(("p", Role.PREFILL), ("d", Role.DECODE))
    scheduler.submit(1)
    scheduler.prefill("p", 1)
    return scheduler


def held(stream_id: int, *, handoff: bool = False, request_id: str = "") -> HeldRequest:
    return HeldRequest(key(stream_id), request_id or f"r{stream_id}", 0, 12, handoff)


def test_a_worker_that_has_computed_what_was_not_its_own_is_named_to_the_gateway() -> None:
    scheduler = moving()
    scheduler.connect(make_info("e", Role.DECODE))
    scheduler.end_forward("e", finished=(1,))
    assert scheduler.placed()[-1] == (1, "e")
    assert scheduler.lost() == []
    assert scheduler.cancelled("p") == scheduler.cancelled("d") == [1]


# --- workers that die ---------------------------------------------------------------------


def test_what_a_dead_worker_held_or_was_being_sent_is_lost_and_the_window_is_not() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.serve("u", running=1)
    scheduler.submit(2, 100)  # the whole chunk
    scheduler.submit(3, 1)
    scheduler.kill("u")
    assert sorted(scheduler.lost()) == [1, 2]
    assert scheduler.core.status().pools[0].num_waiting == 1


def test_a_loss_names_its_process_and_so_does_each_connection() -> None:
    scheduler = make_scheduler()
    info = replace(make_info("u", Role.UNIFIED), process_id="first")
    scheduler.connect(info)
    scheduler.submit(1)
    scheduler.serve("u", running=1)
    scheduler.kill("u")
    scheduler.connect(info)
    scheduler.connect(info)  # as when it drains
    assert [lost.process_id for lost in scheduler.answers(Lost)] == ["first"]
    assert scheduler.answers(WorkerReached) == [WorkerReached("u", "first")] * 2


def test_every_gateway_hears_of_a_loss_and_one_that_comes_hears_who_is_reached() -> None:
    scheduler = make_scheduler()
    scheduler.connect(replace(make_info("u", Role.UNIFIED), process_id="first"))
    scheduler.connect(replace(make_info("v", Role.UNIFIED), process_id="second"))
    scheduler.submit(1)
    scheduler.serve("u", running=1)
    told = _told(scheduler.post(GatewayConnected("h")))
    reached = [WorkerReached("u", "first"), WorkerReached("v", "second")]
    assert told == [("h", each) for each in reached]
    scheduler.post(CancelStream(key(1)))  # its gateway has seen its token stream break
    scheduler.kill("u")
    lost = Lost((), scheduler.answers(Lost)[0].reason, True, "first", "u")
    assert _told(scheduler.new) == [("g", lost), ("h", lost)]
    scheduler.post(GatewayDisconnected("h"))
    scheduler.kill("v")
    assert [gateway_id for gateway_id, _ in _told(scheduler.new)] == ["g"]


def test_a_process_that_is_reached_again_has_not_died_when_its_loss_is_repeated() -> None:
    scheduler = make_scheduler()
    info = replace(make_info("u", Role.UNIFIED), process_id="first")
    scheduler.connect(info)
    request = scheduler.submit(1)
    scheduler.serve("u", running=1)
    scheduler.kill("u")
    scheduler.post(request)  # its gateway was away
    scheduler.connect(info)
    scheduler.post(request)
    assert [lost.died for lost in scheduler.answers(Lost)] == [True, True, False]


def test_a_worker_that_describes_itself_anew_has_not_died() -> None:
    scheduler = make_scheduler()
    info = replace(make_info("u", Role.UNIFIED), process_id="first")
    for process_id in ("first", "second"):
        scheduler.connect(info)
        scheduler.submit(1 if process_id == "first" else 2)
        scheduler.serve("u", running=1)
        info = replace(info, max_model_len=info.max_model_len + 1, process_id=process_id)
        scheduler.connect(info)
    assert [lost.died for lost in scheduler.answers(Lost)] == [False, True]
    assert scheduler.answers(WorkerReached)[-1] == WorkerReached("u", "second")


def _told(actions: Sequence[SchedulerAction]) -> list[tuple[str, ToGateway]]:
    sent = [each for each in actions if isinstance(each, SendToGateway)]
    return [(each.gateway_id, each.message) for each in sent]


def test_a_worker_has_not_died_of_what_it_never_acknowledged() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.serve("u", running=1)
    scheduler.submit(2)
    scheduler.kill("u")
    assert [(lost.keys, lost.died) for lost in scheduler.answers(Lost)] == [
        ((key(1),), True),
        ((key(2),), False),
    ]


def test_each_gateway_is_told_once_of_all_it_has_lost() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    for stream_id, gateway_id in ((1, "g"), (2, "h"), (3, "g")):
        scheduler.submit(stream_id, gateway_id=gateway_id)
        scheduler.serve("u", running=1)
    scheduler.kill("u")
    assert [sorted(k.stream_id for k in m.keys) for m in scheduler.answers(Lost)] == [[1, 3]]
    assert [m.keys for m in scheduler.answers(Lost, "h")] == [(key(2, "h"),)]


def test_the_interval_follows_a_death_at_once() -> None:
    scheduler = make_scheduler(("p1", Role.PREFILL), ("p2", Role.PREFILL))
    assert scheduler.core.status().pools[0].interval == 0.05
    scheduler.kill("p1")
    assert scheduler.core.status().pools[0].interval == 0.1


def test_a_lost_request_that_comes_again_unchanged_is_told_so_again() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.kill("u")
    scheduler.submit(1)
    assert scheduler.lost() == [1, 1]


def failed(stream_id: int) -> FinishedRequest:
    return FinishedRequest(key(stream_id), 0, 4, 2, FinishReason.ERROR)


def test_a_request_whose_end_did_not_reach_its_gateway_is_lost() -> None:
    """Its worker says so once the gateway's stream has broken."""
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    for each in (replace(failed(1), finish_reason=FinishReason.LENGTH), failed(1)):
        assert scheduler.lost() == []
        scheduler.post(WorkerReported("u", EndForward(2, 0.0, (), (), finished=(each,))))
    assert scheduler.lost() == [1]


def test_a_new_leader_answers_that_a_failed_request_is_lost() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.post(WorkerReported("u", EndForward(2, 0.0, (), (), finished=(failed(1),))))
    scheduler.submit(1)
    assert scheduler.lost() == [1]


def test_a_failure_elsewhere_does_not_end_a_request_that_runs_here() -> None:
    """A worker says again to a new leader what its gateway may have missed."""
    scheduler = make_scheduler(("u", Role.UNIFIED), ("v", Role.UNIFIED))
    scheduler.submit(1)
    there = "v" if scheduler.orders("u", Dispatch) else "u"
    scheduler.post(WorkerReported(there, EndForward(2, 0.0, (), (), finished=(failed(1),))))
    assert scheduler.core.status().num_tracked == 1
    assert scheduler.lost() == []


def test_a_cancelled_request_is_not_lost() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.post(CancelStream(key(1)))
    scheduler.kill("u")
    assert scheduler.lost() == []
    assert scheduler.core.status().num_tracked == 0


def test_a_request_that_had_reached_its_target_before_that_died_is_lost() -> None:
    scheduler = moving()
    scheduler.kill("d")
    scheduler.handed_off("p", ok=True)
    assert scheduler.lost() == [1]


def test_a_target_that_died_and_came_back_without_the_request_does_not_keep_it() -> None:
    scheduler = moving()
    scheduler.kill("d")
    scheduler.connect(make_info("d", Role.DECODE))
    scheduler.handed_off("p", ok=True)
    assert scheduler.lost() == [1]
    assert scheduler.cancelled("d") == [1]


def test_a_target_that_came_back_with_the_request_keeps_it() -> None:
    scheduler = moving()
    scheduler.kill("d")
    scheduler.connect(make_info("d", Role.DECODE), held(1))
    scheduler.handed_off("p", ok=True)
    assert scheduler.lost() == []
    assert scheduler.placed()[-1] == (1, "d")


def test_a_worker_that_comes_back_with_another_shape_loses_what_it_held() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.connect(make_info("u", Role.DECODE, chunk=50))
    assert scheduler.lost() == [1]
    scheduler.submit(2)
    assert scheduler.dispatched("u") == [1]


def test_what_a_later_snapshot_leaves_out_ends_with_the_next_report() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.serve("u", running=1)
    scheduler.connect(scheduler.infos["u"], draining=True)
    assert scheduler.core.status().num_tracked == 1  # it may have been on its way there
    scheduler.end_forward("u", finished=(1,))
    assert scheduler.core.status().num_tracked == 0
    assert scheduler.lost() == []


def test_a_later_snapshot_knows_nothing_of_a_dispatch_in_flight() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.connect(scheduler.infos["u"], draining=True)
    assert scheduler.core.status().num_tracked == 1


def test_a_worker_without_any_load_holds_nothing_of_what_was_believed_there() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    scheduler.end_forward("u", dispatch_ids=(), kv_tokens=0)
    assert scheduler.lost() == []  # the dispatch is on its way
    scheduler.accept("u")
    scheduler.end_forward("u", kv_tokens=1)
    assert scheduler.lost() == []
    scheduler.end_forward("u", kv_tokens=0)
    assert scheduler.lost() == [1]


# --- new leaders --------------------------------------------------------------------------


def new_leader(*worker_ids: str) -> SchedulerHarness:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.post(Elected(2, worker_ids))
    scheduler.post(GatewayConnected("g"))
    return scheduler


def test_a_new_leader_goes_on_with_a_move_that_it_finds_half_done() -> None:
    for first, second in (("p", "d"), ("d", "p")):
        scheduler = new_leader("p", "d")
        snapshots = {
            "p": (make_info("p"), held(1, handoff=True)),
            "d": (make_info("d", Role.DECODE), held(1)),
        }
        scheduler.connect(*snapshots[first])
        scheduler.connect(*snapshots[second])
        assert [o.target_worker_id for o in scheduler.orders("p", Handoff)] == ["d"]
        scheduler.handed_off("p")
        assert scheduler.placed() == [(1, first), (1, "d")]
        assert scheduler.cancelled("p") == scheduler.cancelled("d") == []


def test_a_request_cancelled_before_its_worker_was_heard_is_stopped_there() -> None:
    scheduler = new_leader("u")
    scheduler.post(CancelStream(key(1)))
    scheduler.connect(make_info("u", Role.UNIFIED), held(1))
    assert scheduler.cancelled("u") == [1]


def test_held_requests_of_a_gateway_that_never_comes_are_cancelled() -> None:
    scheduler = SchedulerHarness(short_pass(), elect=False)
    scheduler.post(Elected(2, ("u",)))
    scheduler.connect(make_info("u", Role.UNIFIED), held(1))
    scheduler.wait(5.1)
    assert scheduler.cancelled("u") == [1]


def test_a_request_found_running_on_two_workers_goes_on_where_it_is_further() -> None:
    for num_tokens, stopped, kept in ((20, "u", "v"), (12, "v", "u")):
        scheduler = new_leader("u", "v")
        scheduler.connect(make_info("u", Role.UNIFIED), held(1))
        scheduler.connect(make_info("v", Role.UNIFIED), replace(held(1), num_tokens=num_tokens))
        assert (scheduler.cancelled(stopped), scheduler.cancelled(kept)) == ([1], [])
        end = FinishedRequest(key(1), 0, 10, 2, FinishReason.CANCELLED)
        scheduler.post(WorkerReported(stopped, EndForward(1, 0.0, (), (), (), (end,))))
        assert scheduler.core.status().num_tracked == 1
        scheduler.end_forward(kept, dispatch_ids=(), finished=(1,))
        assert scheduler.core.status().num_tracked == 0


def test_what_a_worker_finished_is_lost_if_it_dies_before_the_tokens_are_surely_there() -> None:
    for waited, lost in ((DOUBTFUL - 1.0, [1]), (DOUBTFUL + 1.0, [])):
        scheduler = make_scheduler(("u", Role.UNIFIED))
        scheduler.submit(1)
        scheduler.end_forward("u", finished=(1,))
        scheduler.wait(waited)
        scheduler.kill("u")
        assert scheduler.lost() == lost


def test_a_request_that_its_worker_cancelled_unasked_is_lost() -> None:
    scheduler = make_scheduler(("u", Role.UNIFIED))
    scheduler.submit(1)
    end = FinishedRequest(key(1), 0, 10, 2, FinishReason.CANCELLED)
    scheduler.post(WorkerReported("u", EndForward(1, 0.0, (), (), (), (end,))))
    assert scheduler.lost() == [1]


def test_a_worker_that_finishes_what_another_one_was_given_ends_it_there() -> None:
    scheduler = new_leader()
    scheduler.connect(make_info("u", Role.UNIFIED))
    scheduler.connect(make_info("v", Role.UNIFIED))
    scheduler.submit(1)
    assert scheduler.dispatched("u") == [1]
    scheduler.end_forward("v", dispatch_ids=(), finished=(1,))
    assert scheduler.cancelled("u") == [1]
    assert scheduler.core.status().num_tracked == 0


# --- handoffs to a worker that is gone -----------------------------------------------------


def test_the_source_of_a_handoff_is_told_that_its_target_is_gone() -> None:
    scheduler = moving()
    scheduler.connect(make_info("e", Role.DECODE))
    scheduler.kill("d")
    assert scheduler.orders("p", CancelHandoff) == [CancelHandoff(key(1), "d")]
    assert scheduler.lost() == []
    scheduler.handed_off("p", ok=False)  # as the source reports at once
    assert [order.target_worker_id for order in scheduler.orders("p", Handoff)] == ["d", "e"]


def test_a_source_that_is_gone_is_not_told() -> None:
    scheduler = moving()
    scheduler.kill("p")
    scheduler.kill("d")
    assert scheduler.orders("p", CancelHandoff) == []


# --- waiting for an instance that can take it ------------------------------------------------


def test_a_leader_sleeps_while_nobody_can_prefill_and_goes_on_at_the_next_report() -> None:
    scheduler = SchedulerHarness(short_pass(SchedulerSettings(persists=True)))
    scheduler.connect(make_info("p", blocks=20))
    scheduler.submit(1, 90)
    scheduler.serve("p", free=2, kv_tokens=100)
    scheduler.submit(2, 90)
    scheduler.wait(10.0)
    scheduler.log.clear()
    num_wakes, until = 0, scheduler.now + 100.0
    while (at := scheduler.core.next_wakeup) is not None and at < until:
        num_wakes += 1
        scheduler.wait(at - scheduler.now)
    writes = [action for action in scheduler.log if isinstance(action, Persist)]
    assert not writes
    assert num_wakes <= 101  # one a second, not one every interval of 0.1 s
    assert scheduler.core.status().pools[0].longest_wait_cycles > 1000  # flow control goes on
    scheduler.end_forward("p", free=20, finished=(1,))
    scheduler.wait(0.2)
    assert scheduler.dispatched("p") == [2]
