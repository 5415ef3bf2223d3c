"""The core of a worker whose engine plans its own passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.events import (
    EngineAbort,
    EngineAdd,
    EngineTune,
    GatewayGone,
    KvOffered,
    LeaderConnected,
    PlanningAction,
    RefuseKv,
    SendTokens,
    WorkerEvent,
)
from headway.core.worker.planning_engine import PlanningEngineCore
from headway.core.worker.settings import WorkerSettings
from headway.engine import Computed, Drawn, EngineStepped, PassPlan, Preempted
from headway.errors import Code
from headway.messages import (
    Accepted,
    CancelStream,
    Drain,
    EndForward,
    GiveBack,
    HandedBack,
    Handoff,
    HandoffResult,
    KvHeader,
    Snapshot,
    Tuned,
)
from headway.policies.batching.fcfs import Fcfs
from headway.request import FinishReason, Request, StreamKey, TokenLogprobs
from headway.service_class import ServiceClass, Standing
from tests.fakes.worker_core import dispatch, make_request

EOS = 99


class Harness:
    """Keeps the time and all actions; says what the engine draws."""

    def __init__(self, blocks: int = 32, **settings: Any) -> None:
        info = WorkerInfo("w", "w:1", Role.UNIFIED, "m", 1, 16, 4, blocks, 1000, 0, "")
        self.core = PlanningEngineCore(info, [EOS], Fcfs(), WorkerSettings(**settings))
        self.now = 100.0
        self.log: list[PlanningAction] = []

    def post(self, event: WorkerEvent, *, after: float = 0.01) -> list[PlanningAction]:
        self.now += after
        new = list(self.core.handle(event, now=self.now))
        self.log += new
        return new

    def step(self, *drawn: Drawn, pass_time: float = 0.01) -> list[PlanningAction]:
        return self.post(EngineStepped(pass_time, drawn))

    def planned(
        self, num_added: int, *computed: Computed, drawn: tuple[Drawn, ...] = (), **plan: Any
    ) -> list[PlanningAction]:
        """A step of an engine that shows its plans."""
        return self.post(EngineStepped(0.01, drawn, PassPlan(num_added, computed, **plan)))

    def of(self, kind: type[Any]) -> list[Any]:
        return [a for a in self.log if isinstance(a, kind)]

    def tokens(self) -> list[tuple[int, int, int, FinishReason | None]]:
        """(stream, index, token, finish) of everything sent: the wire has entries alone."""
        rows: list[tuple[int, int, int, FinishReason | None]] = []
        for send in self.of(SendTokens):
            b = send.batch
            assert not b.before
            rows += zip(b.stream_ids, b.indices, b.token_ids, b.finish_reasons, strict=True)
        return rows


def key(number: int) -> StreamKey:
    return StreamKey("g", number)


def serving(*requests: Request, **settings: Any) -> Harness:
    worker = Harness(**settings)
    worker.post(LeaderConnected())
    worker.post(dispatch(*(requests or (make_request(1, max_tokens=5),))))
    return worker


def test_a_dispatched_request_goes_to_the_engine_and_its_tokens_to_the_gateway() -> None:
    worker = serving()
    assert [order.request.key for order in worker.of(EngineAdd)] == [key(1)]
    assert worker.of(Accepted) == [Accepted(1)]
    worker.step(Drawn(key(1), (11,)))
    worker.step(Drawn(key(1), (12, 13)))
    worker.step(Drawn(key(1), (14, 15), FinishReason.LENGTH))
    assert [row[1:3] for row in worker.tokens()] == [(0, 11), (1, 12), (2, 13), (3, 14), (4, 15)]
    assert worker.tokens()[-1][3] is FinishReason.LENGTH
    assert worker.core.num_held == 0
    assert worker.core.loads[0].num_free_blocks == 32


def test_a_dispatch_has_run_when_all_of_its_requests_have_begun() -> None:
    worker = serving(make_request(1), make_request(2))
    worker.step(Drawn(key(1), (11,)), pass_time=0.02)
    assert all(not report.dispatch_ids for report in worker.of(EndForward))
    worker.step(Drawn(key(2), (21,)), pass_time=0.03)
    (report,) = [r for r in worker.of(EndForward) if r.dispatch_ids]
    assert (report.dispatch_ids, report.pass_time) == ((1,), 0.03)


def test_a_full_engine_is_ready_for_more_though_a_dispatch_waits_for_a_place() -> None:
    worker = serving(make_request(1))
    worker.step(Drawn(key(1), (11,)))
    worker.post(dispatch(make_request(2, 7), dispatch_id=2))
    worker.step(Drawn(key(1), (12,)))  # of a pass that may have begun before
    assert all(2 not in report.dispatch_ids for report in worker.of(EndForward))
    worker.step(Drawn(key(1), (13,)))
    report = worker.of(EndForward)[-1]
    assert (report.dispatch_ids, report.loads[0].queued_prefill_tokens) == ((2,), 7)


def test_one_that_is_cancelled_before_it_has_begun_holds_no_dispatch_up() -> None:
    worker = serving(make_request(1), make_request(2))
    worker.post(CancelStream(key(2)))
    assert worker.of(EngineAbort) == [EngineAbort(key(2))]
    worker.step(Drawn(key(1), (11,)))
    assert [r.dispatch_ids for r in worker.of(EndForward) if r.dispatch_ids] == [(1,)]


def test_its_load_is_counted_from_what_it_was_given_and_has_drawn() -> None:
    worker = serving(make_request(1, 6), make_request(2, 7))
    (load,) = worker.core.loads
    assert (load.queued_prefill_tokens, load.num_running, load.num_free_blocks) == (13, 0, 32)
    worker.step(Drawn(key(1), (11,)))
    (load,) = worker.core.loads
    assert (load.queued_prefill_tokens, load.num_running, load.kv_tokens) == (7, 1, 6)
    assert load.num_free_blocks == 30


def test_an_engine_with_more_room_than_it_tells_is_not_held_up() -> None:
    worker = serving(make_request(1, 6), make_request(2, 7), blocks=3)
    worker.step(Drawn(key(1), (11,)), Drawn(key(2), (21,)))
    worker.step(Drawn(key(1), (12, 13, 14)))
    assert len(worker.tokens()) == 5
    assert worker.core.loads[0].num_free_blocks == 0
    worker.step(Drawn(key(1), (15,), FinishReason.LENGTH), Drawn(key(2), (22,), FinishReason.STOP))
    assert worker.core.loads[0].num_free_blocks == 3


def test_an_end_of_sequence_ends_it_though_the_engine_would_go_on() -> None:
    worker = serving()
    worker.step(Drawn(key(1), (EOS,)))
    assert worker.tokens()[-1][3] is FinishReason.STOP
    assert worker.of(EngineAbort) == [EngineAbort(key(1))]


def test_an_end_without_a_token_is_an_end_of_sequence() -> None:
    worker = serving()
    worker.step(Drawn(key(1), (11,)))
    worker.step(Drawn(key(1), (), FinishReason.STOP))
    assert [row[2:] for row in worker.tokens()] == [(11, None), (EOS, FinishReason.STOP)]


def test_a_failure_reaches_the_gateway_and_the_scheduler_by_its_message() -> None:
    worker = serving()
    code = Code.INVALID_ARGUMENT
    worker.step(Drawn(key(1), (), FinishReason.ERROR, message="no such field", code=code))
    (send,) = worker.of(SendTokens)
    assert [(f.message, f.code) for f in send.batch.failures] == [("no such field", code)]
    assert worker.of(EndForward)[-1].finished[0].finish_reason is FinishReason.ERROR


def test_tokens_of_a_request_that_is_gone_are_ignored() -> None:
    worker = serving()
    worker.post(GatewayGone("g"))
    assert worker.of(EngineAbort) == [EngineAbort(key(1))]
    worker.step(Drawn(key(1), (11,)))
    assert worker.tokens() == []


def test_each_token_keeps_its_own_log_probabilities() -> None:
    worker = serving()
    worker.step(Drawn(key(1), (11, 12), logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0))))
    found = [send.batch.logprobs for send in worker.of(SendTokens)]
    assert found == [{0: TokenLogprobs(-1.0), 1: TokenLogprobs(-2.0)}]


def test_no_token_is_lost_where_it_has_no_log_probability() -> None:
    worker = serving()
    worker.step(Drawn(key(1), (11, 12), logprobs=(TokenLogprobs(-1.0),)))
    assert [row[1:3] for row in worker.tokens()] == [(0, 11), (1, 12)]
    assert [send.batch.logprobs for send in worker.of(SendTokens)] == [{}]


def test_only_what_has_not_begun_is_given_back() -> None:
    worker = serving(make_request(1), make_request(2))
    worker.step(Drawn(key(1), (11,)))
    new = worker.post(GiveBack((key(1), key(2))))
    assert HandedBack((key(2),)) in new
    assert EngineAbort(key(2)) in new
    assert worker.core.num_held == 1


def test_a_draining_worker_says_so_and_finishes_what_it_has() -> None:
    worker = serving()
    worker.post(Drain())
    assert worker.of(Snapshot)[-1].draining
    worker.step(Drawn(key(1), (11,), FinishReason.STOP))
    assert worker.core.num_held == 0


def test_kv_neither_leaves_nor_arrives() -> None:
    worker = serving()
    worker.step(Drawn(key(1), (11,)))
    worker.post(Handoff(key(1), "w2", "w2:1", 0, 1))
    (result,) = worker.of(HandoffResult)
    assert (result.ok, result.retriable) == (False, True)
    worker.post(KvOffered(KvHeader(make_request(2), 0, 5, 8, 4, "int", (1, 2, 8, 1, 1))))
    (refusal,) = worker.of(RefuseKv)
    assert "takes no KV" in refusal.error.message


def priorities(gamma: float) -> list[int]:
    """Of a long prompt that came first, and of a short one 0.1 s later."""
    worker = Harness(blocks=300)
    worker.post(Tuned(gamma))
    long, short = make_request(1, 800), make_request(2, 10)
    worker.post(dispatch(long, replace(short, arrival_at=long.arrival_at + 0.1)))
    return [order.priority for order in worker.of(EngineAdd)]


def test_a_short_prompt_has_uniboosts_priority_over_a_long_one_that_came_before() -> None:
    long, short = priorities(gamma=1.0)
    assert short < long


def test_a_class_counts_from_when_it_is_due_and_who_yields_comes_after_all_others() -> None:
    soon = ServiceClass("agent", ttft=5.0)
    batch = ServiceClass("batch", ttft=3600.0, yields=True)
    plain = make_request(1, 50)
    due, yielding = (
        replace(make_request(number, 50), standing=Standing("t", 1.0, service))
        for number, service in ((2, soon), (3, batch))
    )
    late = replace(make_request(4, 500), arrival_at=plain.arrival_at + 3000.0)
    worker = Harness(blocks=300)
    worker.post(dispatch(plain, due, yielding, late))
    first, second, last, before = [order.priority for order in worker.of(EngineAdd)]
    later = 1e3 * (due.arrival_at - plain.arrival_at)
    assert second - first == pytest.approx(later + 5000, abs=10)
    assert last == pytest.approx(1e3 * (yielding.arrival_at + 3600.0), abs=1)
    assert before < last


def test_with_a_great_gamma_the_priority_is_the_arrival_in_milliseconds() -> None:
    assert priorities(gamma=1e9) == [1000, 1100]


@pytest.mark.parametrize("wrong", [replace(make_request(1), model="other"), make_request(1, 1200)])
def test_what_it_cannot_serve_is_refused_without_the_engine(wrong: Request) -> None:
    worker = serving(wrong)
    assert worker.of(EngineAdd) == []
    assert worker.of(SendTokens)[0].batch.failures
    assert worker.of(EndForward)[-1].dispatch_ids == (1,)


# --- an engine that shows its plans -----------------------------------------------------


def test_a_dispatch_has_run_with_the_first_pass_that_was_planned_with_it() -> None:
    worker = serving(make_request(1, 6), make_request(2, 7))
    worker.planned(1, Computed(key(1), 0, 6), drawn=(Drawn(key(1), (11,)),))
    assert all(not report.dispatch_ids for report in worker.of(EndForward))
    worker.planned(2, Computed(key(1), 6, 1), drawn=(Drawn(key(1), (12,)),))
    (report,) = [r for r in worker.of(EndForward) if r.dispatch_ids]
    assert (report.dispatch_ids, report.pass_time) == ((1,), 0.01)


def test_its_load_is_what_the_passes_have_computed() -> None:
    worker = serving(make_request(1, 20))
    worker.planned(1, Computed(key(1), 0, 16))
    (load,) = worker.core.loads
    assert (load.queued_prefill_tokens, load.num_running, load.kv_tokens) == (4, 0, 16)
    assert load.num_free_blocks == 28
    worker.planned(1, Computed(key(1), 16, 4), drawn=(Drawn(key(1), (11,)),))
    (load,) = worker.core.loads
    assert (load.queued_prefill_tokens, load.num_running, load.kv_tokens) == (0, 1, 20)


def test_several_tokens_of_a_pass_count_once_and_end_at_the_one_that_ends_the_request() -> None:
    worker = serving(make_request(1, 6, max_tokens=9))
    worker.planned(1, Computed(key(1), 0, 6), drawn=(Drawn(key(1), (11,)),))
    worker.planned(1, Computed(key(1), 6, 3), drawn=(Drawn(key(1), (12, 13, 14)),))
    (load,) = worker.core.loads
    assert (load.num_running, load.kv_tokens) == (1, 9)
    ended = Drawn(key(1), (15, EOS), FinishReason.STOP)
    worker.planned(1, Computed(key(1), 9, 2), drawn=(ended,))
    assert [row[1:3] for row in worker.tokens()] == list(enumerate((11, 12, 13, 14, 15, EOS)))
    assert [row[3] for row in worker.tokens()] == [None] * 5 + [FinishReason.STOP]
    assert worker.core.num_held == 0


def test_cached_tokens_are_told_to_the_gateway_and_counted() -> None:
    worker = serving(make_request(1, 20))
    worker.planned(1, Computed(key(1), 16, 4), drawn=(Drawn(key(1), (11,)),))
    (send,) = worker.of(SendTokens)
    assert send.batch.num_cached == {0: 16}
    counts = worker.core.prefix_counts
    assert (counts.num_asked_tokens, counts.num_hit_tokens) == (20, 16)


def test_a_request_that_the_engine_preempts_waits_again_and_is_counted() -> None:
    worker = serving(make_request(1, 6), make_request(2, 7))
    both = (Drawn(key(1), (11,)), Drawn(key(2), (21,)))
    worker.planned(2, Computed(key(1), 0, 6), Computed(key(2), 0, 7), drawn=both)
    lost = (Preempted(key(2), True),)
    worker.planned(2, Computed(key(1), 6, 1), drawn=(Drawn(key(1), (12,)),), preempted=lost)
    (load,) = worker.core.loads
    assert (load.num_running, load.lost_tokens, load.num_free_blocks) == (1, 8, 30)
    assert worker.core.preemptions.num_voluntary == 1
    worker.planned(2, Computed(key(2), 0, 8), drawn=(Drawn(key(2), (22,)),))
    assert worker.core.loads[0].num_running == 2
    assert [row[:3] for row in worker.tokens() if row[0] == 2] == [(2, 0, 21), (2, 1, 22)]


def test_one_that_the_engine_has_begun_is_not_given_back() -> None:
    worker = serving(make_request(1, 20), make_request(2, 7))
    worker.planned(2, Computed(key(1), 0, 16))
    new = worker.post(GiveBack((key(1), key(2))))
    assert HandedBack((key(2),)) in new


def test_the_engine_is_told_gamma() -> None:
    worker = serving()
    assert EngineTune(2.0) in worker.post(Tuned(2.0))
