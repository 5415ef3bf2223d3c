"""What a leader writes down, and what its successor makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role, UnitId
from headway.core.scheduler.events import (
    Elected,
    GatewayConnected,
    Learned,
    Persist,
    SavedRequest,
    WorkerReported,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.errors import Code
from headway.messages import (
    CancelStream,
    EndForward,
    FinishedRequest,
    Handoff,
    HandoffResult,
    HeldRequest,
    Tuned,
)
from headway.policies.batching.uniboost import UniBoostParams
from headway.request import FinishReason, StreamKey
from tests.fakes.scheduler_text import SchedulerHarness, key, make_info, make_request, short_pass

LIVE = short_pass(SchedulerSettings(persists=True))


class Successive(SchedulerHarness):
    """Keeps what its leader wrote down, and begins with what the last one did."""

    def __init__(
        self, before: Successive | None = None, *unheard: str, settings: SchedulerSettings = LIVE
    ) -> None:
        super().__init__(settings, elect=False)
        saved = tuple(before.saved().values()) if before is not None else ()
        learned = tuple(before.learned().values()) if before is not None else ()
        self.now = before.now if before is not None else self.now
        self.begun_with = {each.key: each for each in saved}
        self.post(Elected(2 if before else 1, unheard, saved, learned))
        self.post(GatewayConnected("g"))

    def persists(self) -> list[Persist]:
        return [action for action in self.log if isinstance(action, Persist)]

    def saved(self) -> dict[StreamKey, SavedRequest]:
        found = dict(self.begun_with)
        for persist in self.persists():
            found |= {each.key: each for each in persist.saved}
            for gone in persist.ended:
                found.pop(gone, None)
        return found

    def learned(self) -> dict[str, Learned]:
        return {each.model: each for persist in self.persists() for each in persist.learned}


def held(
    stream_id: int, *, waiting: bool = False, decoding: bool = False, arriving: bool = False
) -> HeldRequest:
    return HeldRequest(key(stream_id), f"r{stream_id}", 0, 11, waiting, decoding, arriving)


# --- writing down ---------------------------------------------------------------------


def test_where_a_request_is_is_written_down_until_it_ends() -> None:
    leader = Successive()
    leader.submit(1)
    assert leader.saved()[key(1)].worker_id == ""
    leader.connect(make_info("w", Role.UNIFIED))
    assert leader.saved()[key(1)].worker_id == "w"
    leader.serve("w", finished=(1,))
    assert leader.saved() == {}


def test_the_target_of_a_move_is_written_down_until_it_is_there() -> None:
    leader = Successive()
    leader.connect(make_info("p"))
    leader.connect(make_info("d", Role.DECODE))
    leader.submit(1)
    leader.prefill("p", 1)
    assert leader.saved()[key(1)].target == UnitId("d", 0)
    leader.handed_off("p")
    assert (leader.saved()[key(1)].worker_id, leader.saved()[key(1)].target) == ("d", None)


def test_a_cycle_writes_once_and_before_its_orders() -> None:
    leader = Successive()
    for stream_id in range(1, 4):
        leader.submit(stream_id)
    actions = leader.connect(make_info("w", Role.UNIFIED))
    assert [i for i, action in enumerate(actions) if isinstance(action, Persist)] == [0]
    assert isinstance(actions[0], Persist)
    assert [saved.key.stream_id for saved in actions[0].saved] == [1, 2, 3]
    assert [each.model for each in actions[0].learned] == ["m"]


def test_what_was_refused_at_once_is_not_written_down() -> None:
    leader = Successive(settings=replace(LIVE, max_waiting=1))
    leader.submit(1)
    num_writes = len(leader.persists())
    leader.submit(2)
    assert leader.rejected()[0].code is Code.RESOURCE_EXHAUSTED
    assert len(leader.persists()) == num_writes


def test_the_record_of_a_request_that_waits_for_too_long_under_the_next_leader_is_dropped() -> None:
    leader = Successive()
    leader.connect(make_info("w", Role.UNIFIED))
    leader.submit(1, deadline_at=3.0)
    following = Successive(leader)
    assert key(1) in following.saved()
    following.submit(1, deadline_at=3.0)  # it waits for the worker's report
    following.wait(2.5)
    following.connect(make_info("w", Role.UNIFIED))
    assert following.rejected()[0].code is Code.DEADLINE_EXCEEDED
    assert key(1) not in following.saved()


def test_nothing_is_written_down_unless_asked_for() -> None:
    harness = SchedulerHarness()
    harness.connect(make_info("w", Role.UNIFIED))
    harness.submit(1)
    assert not any(isinstance(action, Persist) for action in harness.log)


# --- requests that waited -------------------------------------------------------------


def busy_leader() -> Successive:
    """One request runs and two have been left over for some cycles: there is no room for them."""
    leader = Successive()
    leader.connect(make_info("w", Role.UNIFIED))
    leader.submit(1)
    leader.accept("w")
    leader.end_forward("w", running=1, free=2)
    leader.submit(2, 100)
    leader.submit(3, 100)
    for _ in range(3):
        leader.end_forward("w", running=1, free=2, after=0.5)
    return leader


def test_those_who_waited_take_their_places_again_whoever_comes_first() -> None:
    leader = busy_leader()
    assert leader.dispatched("w") == [1]
    successor = Successive(leader, "w")
    for stream_id in (9, 3, 2):  # 9 is new, and its gateway was faster
        successor.submit(stream_id, 100)
    successor.connect(make_info("w", Role.UNIFIED), held(1))
    assert successor.dispatched("w") == [2]
    successor.serve("w")
    assert successor.dispatched("w") == [2, 3]


def test_who_was_let_in_is_not_refused_by_the_next_leader() -> None:
    leader = busy_leader()
    successor = Successive(leader, "w", settings=replace(LIVE, max_waiting=1))
    successor.submit(8)
    successor.submit(9)
    successor.submit(2)
    assert [rejected.key.stream_id for rejected in successor.rejected()] == [9]


def test_how_long_they_have_waited_is_not_forgotten() -> None:
    leader = busy_leader()
    waited = leader.core.status().pools[0].longest_wait_cycles
    assert waited > 0
    successor = Successive(leader, "w")
    successor.submit(2)
    assert successor.core.status().pools[0].longest_wait_cycles == waited


def test_pass_times_and_round_trips_go_on_from_what_was_measured() -> None:
    leader = Successive()
    leader.connect(make_info("w", Role.UNIFIED))
    leader.submit(1)
    leader.post(GatewayConnected("g"), after=0.01)
    leader.serve("w", pass_time=0.4, finished=(1,))
    leader.submit(2)
    leader.serve("w", pass_time=0.4, finished=(2,))
    measured = leader.core.status().pools[0]
    successor = Successive(leader, "w")
    recalled = successor.core.status().pools[0]
    assert recalled.mean_pass_time == measured.mean_pass_time == 0.4
    assert recalled.dispatch_latency == leader.learned()["m"].dispatch_latency > 0


def test_gamma_goes_on_from_the_last_fit() -> None:
    fitted = replace(LIVE, gamma_fit=UniBoostParams())
    successor = SchedulerHarness(fitted, elect=False)
    successor.post(Elected(2, ("w",), (), (Learned("m", 7, 0.4, 0.01, 900.0, 0.25),)))
    successor.connect(make_info("w", Role.UNIFIED))
    assert successor.orders("w", Tuned) == [Tuned(0.25)]


def test_a_fitted_gamma_is_written_down_at_once_and_the_successor_fits_on_from_it() -> None:
    fitted = replace(LIVE, gamma_fit=UniBoostParams(gamma=0.05))
    leader = Successive(settings=fitted)
    leader.connect(make_info("w", Role.UNIFIED, chunk=1 << 20))
    for stream_id in range(1, 201):
        leader.submit(stream_id)
    for stream_id in range(1, 201):  # nothing is dispatched any more
        leader.end_forward("w", finished=(stream_id,), after=0.1)
    gamma = leader.learned()["m"].gamma
    assert gamma == leader.orders("w", Tuned)[-1].gamma != 0.05
    successor = Successive(leader, "w", settings=fitted)
    successor.connect(make_info("w", Role.UNIFIED))
    assert successor.orders("w", Tuned) == [Tuned(gamma)]


# --- requests that a silent worker may have -------------------------------------------


def dispatched_leader() -> Successive:
    leader = Successive()
    leader.connect(make_info("w", Role.UNIFIED))
    leader.submit(1)
    assert leader.dispatched("w") == [1]
    return leader


def test_what_a_silent_worker_may_run_is_not_dispatched_elsewhere() -> None:
    successor = Successive(dispatched_leader(), "w", "x")
    successor.connect(make_info("x", Role.UNIFIED))
    successor.submit(1)
    successor.submit(2)
    successor.wait(2.0)
    assert successor.dispatched("x") == [2]
    assert successor.core.status().num_held_back == 1
    successor.connect(make_info("w", Role.UNIFIED), held(1))
    assert successor.dispatched("w") == []
    assert successor.core.status().num_held_back == 0
    assert successor.core.status().num_tracked == 2


def test_what_a_deposed_leader_placed_is_not_dispatched_elsewhere() -> None:
    successor = Successive(None, "w", "x")
    successor.connect(make_info("x", Role.UNIFIED))
    successor.post(replace(make_request(1), placed_on=("w",)))
    successor.wait(2.0)
    assert successor.dispatched("x") == []
    successor.connect(make_info("w", Role.UNIFIED), held(1))
    assert successor.dispatched("w") == []
    assert set(successor.placed()) == {(1, "w")}


@pytest.mark.parametrize("by_journal", [True, False])
def test_a_worker_without_a_lease_is_waited_for_too(by_journal: bool) -> None:
    successor = Successive(dispatched_leader() if by_journal else None)  # the store was away
    successor.post(replace(make_request(1), placed_on=() if by_journal else ("w",)))
    successor.connect(make_info("x", Role.UNIFIED))
    assert successor.dispatched("x") == []
    successor.connect(make_info("w", Role.UNIFIED), held(1))
    assert successor.dispatched("x") == successor.dispatched("w") == []
    assert successor.core.status().num_tracked == 1


@pytest.mark.parametrize("by_journal", [True, False])
@pytest.mark.parametrize("is_short", [True, False])
def test_what_may_run_on_a_worker_that_cannot_be_reached_is_lost(
    by_journal: bool, is_short: bool
) -> None:
    successor = Successive(dispatched_leader() if by_journal else None, "w", "x")
    successor.connect(make_info("x", Role.UNIFIED))
    if by_journal:
        successor.submit(1)
    else:
        successor.post(replace(make_request(1), placed_on=("w", "x")))
    if is_short:
        successor.kill("w")
    else:
        successor.wait(LIVE.graces.memory + 0.1)
    assert successor.lost() == [1]  # it may run there; its gateway stops it, and asks anew
    assert successor.dispatched("x") == []
    assert successor.core.status().num_held_back == 0
    successor.post(replace(make_request(2), request_id="r1", attempt=1))
    assert successor.dispatched("x") == [2]


def test_an_older_attempt_beside_one_that_was_submitted_is_stopped() -> None:
    successor = Successive(None, "w")
    successor.post(replace(make_request(2), request_id="r1"))
    successor.connect(make_info("w", Role.UNIFIED), held(1))
    assert successor.cancelled("w") == [1]
    assert successor.core.status().num_tracked == 1


def test_it_runs_elsewhere_once_its_worker_is_heard_without_it() -> None:
    successor = Successive(dispatched_leader(), "w", "x")
    successor.connect(make_info("x", Role.UNIFIED))
    successor.submit(1)
    successor.connect(make_info("w", Role.PREFILL), draining=True)
    assert successor.dispatched("x") == [1]


def test_a_cancelled_request_is_not_waited_for() -> None:
    successor = Successive(dispatched_leader(), "w", "x")
    successor.connect(make_info("x", Role.UNIFIED))
    successor.submit(1)
    successor.post(CancelStream(key(1)))
    successor.kill("w")
    assert successor.dispatched("x") == successor.lost() == []


def test_what_nobody_tells_of_is_forgotten_and_removed() -> None:
    successor = Successive(dispatched_leader(), "w")
    successor.connect(make_info("w", Role.UNIFIED))
    assert key(1) in successor.saved()
    successor.wait(LIVE.graces.memory + 0.1)
    assert successor.saved() == {}


# --- moves ----------------------------------------------------------------------------


def moving_leader() -> Successive:
    leader = Successive()
    leader.connect(make_info("p"))
    leader.connect(make_info("d", Role.DECODE))
    leader.submit(1)
    leader.prefill("p", 1)
    assert len(leader.orders("p", Handoff)) == 1
    return leader


def moving_successor() -> tuple[Successive, Handoff]:
    """Return the next leader, once all have reported, and the move that it orders again."""
    successor = Successive(moving_leader(), "c", "d", "p")
    successor.connect(make_info("c", Role.DECODE))
    successor.connect(make_info("p"), held(1, waiting=True))
    successor.connect(make_info("d", Role.DECODE))
    (order,) = successor.orders("p", Handoff)
    return successor, order


def test_a_move_goes_on_to_the_unit_that_was_chosen() -> None:
    successor, order = moving_successor()
    assert order.target_worker_id == "d"
    successor.handed_off("p")
    assert successor.placed() == [(1, "p"), (1, "d")]


def test_what_a_silent_target_may_have_is_not_computed_again() -> None:
    successor = Successive(moving_leader(), "c", "d", "p")
    successor.connect(make_info("c", Role.DECODE))
    successor.connect(make_info("p"))
    successor.submit(1)
    successor.wait(2.0)
    assert successor.dispatched("p") == []
    successor.connect(make_info("d", Role.DECODE), held(1, decoding=True))
    assert successor.dispatched("p") == []
    assert successor.core.status().num_tracked == 1


def test_a_move_that_ends_before_all_are_heard_is_not_computed_again() -> None:
    leader = moving_leader()
    successor = Successive(leader, "c", "d", "p")
    successor.connect(make_info("p"), held(1, waiting=True))
    successor.connect(make_info("d", Role.DECODE), held(1, decoding=True))
    successor.log += leader.log  # the order that it answers
    successor.handed_off("p")
    assert successor.placed()[-1] == (1, "d")
    assert successor.lost() == []


def test_a_failed_move_of_an_older_leader_is_begun_anew_by_the_newer_order() -> None:
    successor, order = moving_successor()
    older = HandoffResult(order.key, "d", order.target_unit, False, True, "refused", 1)
    successor.post(WorkerReported("p", older))
    assert len(successor.orders("p", Handoff)) == 1
    successor.handed_off("p")
    assert successor.placed()[-1] == (1, "d")
    assert successor.lost() == []


def test_what_a_target_took_under_an_older_leader_and_does_not_report_has_ended_there() -> None:
    successor, order = moving_successor()
    older = HandoffResult(order.key, "d", order.target_unit, ok=True, fencing_token=1)
    successor.post(WorkerReported("p", older))
    assert successor.core.status().num_tracked == 0
    assert successor.lost() == [1], "a gateway that has all its tokens ignores that"


def test_what_a_target_took_under_an_older_leader_and_reports_runs_there() -> None:
    successor = Successive(moving_leader(), "c", "d", "p")
    successor.connect(make_info("c", Role.DECODE))
    successor.connect(make_info("p"), held(1, waiting=True))
    successor.connect(make_info("d", Role.DECODE), held(1, decoding=True))
    order = successor.orders("p", Handoff)[-1]
    older = HandoffResult(order.key, "d", order.target_unit, ok=True, fencing_token=1)
    successor.post(WorkerReported("p", older))
    assert successor.placed()[-1] == (1, "d")
    assert successor.lost() == []


def test_where_the_chosen_unit_is_gone_another_is_chosen() -> None:
    successor = Successive(moving_leader(), "c", "p")
    successor.connect(make_info("c", Role.DECODE))
    successor.connect(make_info("p"), held(1, waiting=True))
    (order,) = successor.orders("p", Handoff)
    assert order.target_worker_id == "c"


def test_a_snapshot_wins_over_what_was_written_down() -> None:
    successor = Successive(moving_leader(), "d", "p")
    successor.connect(make_info("d", Role.DECODE), held(1))
    successor.connect(make_info("p"))
    assert successor.orders("p", Handoff) == []
    successor.post(make_request(1))
    assert successor.dispatched("p") == []


# --- requests that arrive while a new leader comes ------------------------------------


def heard_arriving(*others: str) -> Successive:
    """The target of a move was heard first; nothing was written down."""
    successor = Successive(None, "d", *others)
    successor.connect(make_info("d", Role.DECODE), held(1, arriving=True))
    return successor


def test_what_is_arriving_at_a_worker_is_not_dispatched() -> None:
    successor = heard_arriving("p")
    successor.connect(make_info("p"))
    successor.post(make_request(1))
    assert successor.dispatched("p") == []
    assert successor.lost() == successor.cancelled("d") == []


def test_what_does_not_arrive_is_lost_once() -> None:
    successor = heard_arriving()
    fails = FinishedRequest(key(1), 0, 10, 1, FinishReason.CANCELLED)
    successor.post(WorkerReported("d", EndForward(1, 0.0, (), (), (), (fails,))))
    assert successor.lost() == [1]
    successor.connect(make_info("p"), held(1, waiting=True))
    assert successor.cancelled("p") == [1]


def test_what_was_arriving_at_a_worker_that_dies_is_lost() -> None:
    successor = heard_arriving()
    successor.kill("d")
    assert successor.lost() == [1]


def test_a_running_source_that_is_heard_later_goes_on_where_the_move_fails() -> None:
    successor = heard_arriving("e")
    successor.connect(make_info("e", Role.DECODE), held(1, decoding=True))
    successor.handed_off("e", ok=False)
    assert successor.lost() == successor.cancelled("e") == []
    assert successor.saved()[key(1)].worker_id == "e"


def test_a_target_that_is_heard_after_its_running_source_is_waited_for() -> None:
    successor = Successive(None, "d", "e")
    successor.connect(make_info("e", Role.DECODE), held(1, decoding=True))
    successor.connect(make_info("d", Role.DECODE), held(1, arriving=True))
    assert successor.saved()[key(1)].target == UnitId("d", 0)
    successor.handed_off("e")
    assert successor.placed()[-1] == (1, "d")


def test_what_waits_again_is_not_dispatched_once_a_worker_says_it_arrives() -> None:
    successor = Successive(None, "d")
    successor.submit(1)
    successor.connect(make_info("d", Role.DECODE), held(1, arriving=True))
    successor.connect(make_info("p"))
    assert successor.dispatched("p") == []


def test_what_was_dispatched_elsewhere_is_not_taken_in_by_a_late_target() -> None:
    successor = Successive()
    successor.connect(make_info("p"))
    successor.submit(1)
    successor.connect(make_info("d", Role.DECODE), held(1, arriving=True))
    assert (successor.dispatched("p"), successor.cancelled("d")) == ([1], [1])
