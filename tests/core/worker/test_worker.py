"""The worker's core: passes, finishing, preemption, handoffs and reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.defaults import DOUBTFUL
from headway.core.worker.events import (
    GatewayGone,
    LeaderConnected,
    PassFailed,
    RefuseKv,
    SendTokens,
    StopTransfer,
    TransferEnded,
)
from headway.forward_pass import PassResult, Sampled
from headway.messages import (
    Accepted,
    CancelHandoff,
    Dispatch,
    Handoff,
    HandoffResult,
    UnitBatch,
)
from headway.request import FinishReason, StreamKey
from tests.fakes.paged import EOS, WorkerHarness, expected_output, transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of, reports


def test_a_request_yields_its_tokens_and_ends_by_length() -> None:
    worker = make_worker()
    request = make_request(1)
    worker.post(dispatch(request))
    worker.run_all()
    assert output_of(worker, 1) == expected_output(request.prompt_token_ids, 5)
    assert worker.ends == {1: ["length"]}
    assert worker.core.num_held == 0


def test_a_repeated_dispatch_is_acknowledged_and_otherwise_ignored() -> None:
    worker = make_worker()
    request = make_request(1)
    worker.post(dispatch(request))
    again = worker.post(dispatch(request))
    assert Accepted(1) in again
    worker.run_all()
    assert worker.ends == {1: ["length"]}
    again = worker.post(dispatch(request))
    assert Accepted(1) in again
    assert worker.core.num_held == 0


def test_a_resubmitted_request_goes_on_behind_its_tokens() -> None:
    worker = make_worker()
    first = make_request(1)
    whole = expected_output(first.prompt_token_ids, 5)
    second = replace(first, output_token_ids=tuple(whole[:3]))
    worker.post(dispatch(second))
    worker.run_all()
    assert worker.tokens[1] == {3: whole[3], 4: whole[4]}


def test_a_request_that_can_never_fit_is_refused_with_the_limit() -> None:
    worker = make_worker(blocks=4, block_size=2)
    actions = worker.post(dispatch(make_request(1, prompt=8)))
    failure = next(a for a in actions if isinstance(a, SendTokens)).batch.failures[0]
    assert "8 tokens" in failure.message
    assert "limit is 8" in failure.message
    report = reports(worker)[-1]
    assert report.finished[0].finish_reason is FinishReason.ERROR
    assert report.pass_time == 0.0


def test_an_unknown_unit_or_model_fails_the_request_alone() -> None:
    worker = make_worker()
    worker.post(dispatch(make_request(1), unit=3))
    assert worker.ends == {1: ["error"]}
    worker.post(dispatch(make_request(2), dispatch_id=2))
    worker.run_all()
    assert worker.ends[2] == ["length"]


def test_a_gateway_that_is_gone_takes_its_requests_with_it() -> None:
    worker = make_worker()
    mine = make_request(1, gateway_id="gone", max_tokens=50)
    other = make_request(2)
    worker.post(dispatch(mine, other))
    worker.post(GatewayGone("gone"))
    worker.run_all()
    assert worker.ends == {2: ["length"]}
    assert worker.core.num_held == 0


@pytest.mark.parametrize("has_failed", [False, True])
def test_what_has_just_ended_for_a_gateway_that_is_gone_is_reported_as_failed(
    has_failed: bool,
) -> None:
    worker = make_worker()
    mine = make_request(1, gateway_id="gone", max_tokens=2)
    worker.post(dispatch(mine, make_request(2, max_tokens=2)))
    if has_failed:
        worker.post(PassFailed(worker.passes.popleft().pass_id, (mine.key,), "broken"))
    worker.run_all()
    worker.post(GatewayGone("gone"))
    (finished,) = reports(worker)[-1].finished
    assert (finished.key, finished.finish_reason) == (mine.key, FinishReason.ERROR)
    num_reports = len(reports(worker))
    worker.post(GatewayGone("gone"))  # it has been said
    assert len(reports(worker)) == num_reports


def test_a_doubt_that_met_no_leader_is_said_to_the_next_one() -> None:
    worker = make_worker()
    mine = make_request(1, gateway_id="gone", max_tokens=2)
    worker.post(dispatch(mine))
    worker.run_all()
    worker.post(GatewayGone("gone"))
    num_reports = len(reports(worker))
    worker.post(LeaderConnected())
    (finished,) = reports(worker)[num_reports].finished
    assert (finished.key, finished.finish_reason) == (mine.key, FinishReason.ERROR)


def test_what_is_here_again_when_its_gateway_is_gone_is_cancelled_and_not_doubted() -> None:
    """A leader that knows it as running here takes a failure for one that its gateway has heard."""
    worker = make_worker()
    mine = make_request(1, gateway_id="gone", max_tokens=2)
    worker.post(dispatch(mine))
    worker.run_all()
    worker.post(dispatch(mine, dispatch_id=2))
    num_reports = len(reports(worker))
    worker.post(GatewayGone("gone"))
    worker.run_all()
    finished = [each for report in reports(worker)[num_reports:] for each in report.finished]
    assert [(f.key, f.finish_reason) for f in finished] == [(mine.key, FinishReason.CANCELLED)]


def test_what_ended_long_before_its_gateway_was_gone_is_not_doubted() -> None:
    worker = make_worker()
    worker.post(dispatch(make_request(1, gateway_id="gone", max_tokens=2)))
    worker.run_all()
    num_reports = len(reports(worker))
    worker.now += DOUBTFUL + 1.0
    worker.post(GatewayGone("gone"))
    assert len(reports(worker)) == num_reports


def draw(worker: WorkerHarness, key: StreamKey, token: int) -> None:
    forward_pass = worker.passes.popleft()
    worker.post(PassResult(forward_pass.pass_id, 0.01, (Sampled(key, token),)))


def test_end_of_sequence_ends_a_request_unless_told_to_ignore_it() -> None:
    worker = make_worker()
    request = make_request(1)
    worker.post(dispatch(request))
    draw(worker, request.key, EOS)
    assert worker.ends == {1: ["stop"]}
    ignoring = make_request(2, ignore_eos=True)
    worker.post(dispatch(ignoring, dispatch_id=2))
    draw(worker, ignoring.key, EOS)
    assert 2 not in worker.ends


def test_a_stop_token_counts_only_after_min_tokens() -> None:
    worker = make_worker()
    request = make_request(1, stop_token_ids=(7,), min_tokens=2)
    worker.post(dispatch(request))
    draw(worker, request.key, 7)
    assert worker.ends == {}
    draw(worker, request.key, 7)
    assert worker.ends == {1: ["stop"]}


def test_a_failed_pass_ends_the_requests_to_blame_and_goes_on_with_the_others() -> None:
    worker = make_worker()
    bad, good = make_request(1), make_request(2)
    worker.post(dispatch(bad, good))
    forward_pass = worker.passes.popleft()
    worker.post(PassFailed(forward_pass.pass_id, (bad.key,), "logits are NaN"))
    worker.run_all()
    assert worker.ends == {1: ["error"], 2: ["length"]}


def test_end_forward_names_the_dispatch_whose_pass_ended() -> None:
    worker = make_worker()
    worker.post(dispatch(make_request(1), dispatch_id=41))
    worker.post(dispatch(make_request(2), dispatch_id=42))
    worker.run_pass()
    assert reports(worker)[-1].dispatch_ids == (41,)
    worker.run_pass()
    assert reports(worker)[-1].dispatch_ids == (42,)


@pytest.mark.parametrize("role", [Role.UNIFIED, Role.PREFILL])
def test_every_chunk_of_a_prompt_is_reported_with_what_is_left(role: Role) -> None:
    worker = make_worker(role, report_interval=100.0)
    chunk = worker.core.info.chunk_tokens
    worker.post(dispatch(make_request(1, 2 * chunk + 5, max_tokens=50)))
    for left in (chunk + 5, 5, 0):
        worker.run_pass()
        assert reports(worker)[-1].loads[0].queued_prefill_tokens == left


def test_a_target_whose_address_is_now_the_sources_own_gets_nothing() -> None:
    source = make_worker(Role.PREFILL)
    request = make_request(1)
    source.post(dispatch(request))
    source.run_all()
    source.post(Handoff(request.key, "before", "w:1", 0, 1))
    result = source.log[-1]
    assert isinstance(result, HandoffResult)
    assert (result.ok, result.retriable) == (False, True)
    assert source.core.num_held == 1


@pytest.mark.parametrize(("ok", "fencing_token"), [(False, 5), (True, 1)])
def test_a_failure_names_its_moves_newest_order_and_a_success_the_one_that_began_it(
    ok: bool, fencing_token: int
) -> None:
    source = make_worker(Role.PREFILL)
    request = make_request(1)
    source.post(dispatch(request))
    source.run_all()
    source.post(Handoff(request.key, "t", "t:1", 0, 1))
    source.post(Handoff(request.key, "t", "t:1", 0, 5))
    source.post(Handoff(request.key, "another", "a:1", 0, 6))  # ignored: it is leaving already
    actions = source.post(TransferEnded(request.key, "t", 0, ok, "its leader has gone"))
    (result,) = [each for each in actions if isinstance(each, HandoffResult)]
    assert (result.target_worker_id, result.fencing_token) == ("t", fencing_token)


def test_an_offer_without_room_is_refused_with_the_count_of_blocks() -> None:
    source = make_worker(Role.PREFILL)
    target = make_worker(Role.DECODE, blocks=3)
    for stream_id, prompt in ((1, 8), (2, 8)):
        request = make_request(stream_id, prompt=prompt, max_tokens=3)
        source.post(dispatch(request, dispatch_id=stream_id))
        source.run_all()
        source.post(Handoff(request.key, "t", "t:1", 0, 1))
    assert transfer(source, target)
    assert not transfer(source, target)
    refusal = next(a for a in target.log if isinstance(a, RefuseKv))
    assert "needs 3" in refusal.error.message


def test_a_transfer_to_a_worker_that_is_gone_is_stopped_and_its_request_stays() -> None:
    source = make_worker(Role.PREFILL)
    request = make_request(1)
    source.post(dispatch(request))
    source.run_all()
    source.post(Handoff(request.key, "t", "t:1", 0, 1))
    source.post(CancelHandoff(request.key, "another"))
    assert not any(isinstance(action, StopTransfer) for action in source.log)
    source.post(CancelHandoff(request.key, "t"))
    source.post(CancelHandoff(request.key, "t"))
    assert [a for a in source.log if isinstance(a, StopTransfer)] == [StopTransfer(request.key)]
    source.post(TransferEnded(request.key, "t", 0, False, "the transfer was called off"))
    result = source.log[-1]
    assert isinstance(result, HandoffResult)
    assert (result.ok, result.retriable) == (False, True)
    assert source.core.num_held == 1
    source.post(CancelHandoff(request.key, "t"))  # it has ended
    assert source.log[-1] is result


def test_a_unified_worker_says_once_whose_prompt_is_computed() -> None:
    worker = make_worker(Role.UNIFIED, chunk=8)
    worker.post(dispatch(make_request(1, prompt=22, max_tokens=9)))
    worker.post(dispatch(make_request(2, prompt=4, max_tokens=9), dispatch_id=2))
    worker.run_all()
    begun = [[each.stream_id for each in report.begun] for report in reports(worker)]
    assert [each for each in begun if each] == [[1], [2]]
    prefiller = make_worker(Role.PREFILL)
    prefiller.post(dispatch(make_request(1)))
    prefiller.run_all()
    assert not any(report.begun for report in reports(prefiller))


def test_dp_units_share_passes_but_not_blocks() -> None:
    worker = make_worker(units=2, blocks=8)
    one, two = make_request(1), make_request(2)
    worker.post(Dispatch(1, (UnitBatch(0, (one,)), UnitBatch(1, (two,)))))
    items = worker.passes[0].items
    assert max(items[0].block_table) < 8 <= min(items[1].block_table)
    worker.run_all()
    for request in (one, two):
        assert output_of(worker, request.stream_id) == expected_output(request.prompt_token_ids, 5)
