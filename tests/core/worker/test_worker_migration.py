"""A running request moves to another worker between two tokens."""

from __future__ import annotations

from headway.cluster import Role
from headway.core.worker.events import (
    AcknowledgeKv,
    LeaderConnected,
    PassFailed,
    RefuseKv,
)
from headway.messages import CancelStream, EndForward, Handoff, HandoffResult, Snapshot
from headway.request import FinishReason, StreamKey
from tests.fakes.paged import WorkerHarness, expected_output, transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of

MOVE = Handoff(StreamKey("g", 1), "w2", "w2:1", 0, 1)


def decoding(max_tokens: int = 9) -> WorkerHarness:
    """A worker in the pass of a request's third token."""
    worker = make_worker(Role.DECODE)
    worker.post(dispatch(make_request(1, max_tokens=max_tokens)))
    worker.run_pass()
    worker.run_pass()
    assert worker.passes
    return worker


def results(worker: WorkerHarness) -> list[HandoffResult]:
    return [a for a in worker.log if isinstance(a, HandoffResult)]


def test_it_leaves_at_the_end_of_its_pass_and_goes_on_at_the_exact_token() -> None:
    source, target = decoding(), make_worker(Role.DECODE)
    source.post(MOVE)
    assert not source.transfers
    source.run_pass()
    assert not source.passes
    assert transfer(source, target)
    target.run_all()
    assert output_of(source, 1) + output_of(target, 1) == expected_output(range(2, 8), 9)
    assert sorted(target.tokens[1]) == [3, 4, 5, 6, 7, 8]
    assert source.core.num_held == 0
    assert [(r.ok, r.target_worker_id) for r in results(source)] == [(True, "w2")]


def test_a_repeated_order_moves_it_once() -> None:
    source = decoding()
    source.post(MOVE)
    source.post(MOVE)
    source.run_pass()
    source.post(MOVE)
    assert len(source.transfers) == 1


def test_one_whose_prompt_is_not_computed_stays() -> None:
    source = make_worker(Role.DECODE, chunk=4)
    source.post(dispatch(make_request(1, prompt=12)))
    source.post(MOVE)
    assert [(r.ok, r.retriable) for r in results(source)] == [(False, False)]


def test_a_failed_pass_ends_it_where_it_was() -> None:
    source = decoding()
    source.post(MOVE)
    source.post(PassFailed(source.passes.popleft().pass_id, (), "out of memory"))
    assert [r.ok for r in results(source)] == [False]
    assert not source.transfers


def test_a_pass_that_failed_for_another_lets_it_go() -> None:
    source = decoding()
    source.post(dispatch(make_request(2), dispatch_id=2))
    source.run_pass()
    source.post(MOVE)
    source.post(PassFailed(source.passes.popleft().pass_id, (StreamKey("g", 2),), "bad input"))
    assert len(source.transfers) == 1


# --- a leader that comes during a move ------------------------------------------------


def greet(worker: WorkerHarness, fencing_token: int) -> Snapshot:
    actions = worker.post(LeaderConnected(fencing_token=fencing_token))
    return next(a for a in actions if isinstance(a, Snapshot))


def leaving() -> WorkerHarness:
    """A worker that is about to send a request, by order of the leader with token 1."""
    source = decoding()
    source.post(MOVE)
    source.run_pass()
    return source


def test_a_target_that_has_greeted_a_newer_leader_refuses_the_kv() -> None:
    source, target = leaving(), make_worker(Role.DECODE)
    assert greet(target, 2).held == ()
    assert not transfer(source, target)
    refusal = next(a for a in target.log if isinstance(a, RefuseKv))
    assert "fencing token 1" in refusal.error.message
    assert [h.key for h in greet(source, 2).held] == [MOVE.key]
    source.run_all()
    assert output_of(source, 1) == expected_output(range(2, 8), 9)


def test_an_offer_of_what_runs_here_already_is_acknowledged() -> None:
    """The acknowledgement was lost, and the source tries again."""
    source, target = leaving(), make_worker(Role.DECODE)
    source.transfers.append(source.transfers[0])
    assert transfer(source, target)
    num_free = target.core.loads[0].num_free_blocks
    assert transfer(source, target)
    assert any(isinstance(answer, AcknowledgeKv) for answer in target.log)
    assert target.core.loads[0].num_free_blocks == num_free
    target.run_all()
    assert output_of(source, 1) + output_of(target, 1) == expected_output(range(2, 8), 9)


def test_a_snapshot_lists_what_is_arriving_and_its_arrival_is_reported() -> None:
    source, target = leaving(), make_worker(Role.DECODE)
    snapshots: list[Snapshot] = []
    transfer(source, target, after_offer=lambda: snapshots.append(greet(target, 2)))
    (held,) = snapshots[0].held
    assert (held.key, held.arriving) == (MOVE.key, True)
    target.run_pass()
    (arrived,) = reported(target)[0].prefilled
    assert (arrived.key, arrived.arriving, arrived.decoding) == (MOVE.key, False, True)


def test_what_is_cancelled_while_it_arrives_does_not_run() -> None:
    source, target = leaving(), make_worker(Role.DECODE)
    transfer(source, target, after_offer=lambda: target.post(CancelStream(MOVE.key)))
    assert target.core.num_held == 0
    assert not target.passes
    assert target.core.loads[0].num_free_blocks == 32


def test_what_was_listed_as_arriving_and_does_not_arrive_is_reported() -> None:
    source, target = leaving(), make_worker(Role.DECODE)
    transfer(source, target, fails=True, after_offer=lambda: greet(target, 2))
    (finished,) = [f for report in reported(target) for f in report.finished]
    assert (finished.key, finished.finish_reason) == (MOVE.key, FinishReason.CANCELLED)


def test_an_arrival_that_no_snapshot_has_listed_is_no_news() -> None:
    source, target = leaving(), make_worker(Role.DECODE)
    transfer(source, target, fails=True)
    assert all(not (r.finished or r.prefilled) for r in reported(target))


def reported(worker: WorkerHarness) -> list[EndForward]:
    return [a for a in worker.log if isinstance(a, EndForward)]
