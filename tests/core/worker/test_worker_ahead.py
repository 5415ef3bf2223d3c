"""A worker that runs ahead: the next pass is planned while one is in flight."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.cluster import Role, WorkerInfo
from headway.core.worker.core import WorkerCore, WorkerSettings
from headway.core.worker.events import PassFailed, SendTokens, StartTransfer
from headway.errors import Code, HeadwayError
from headway.forward_pass import PENDING, ForwardPass, PassResult, Sampled
from headway.messages import CancelStream, Dispatch, EndForward, Handoff, UnitBatch
from headway.policies import registry
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from tests.fakes.paged import EOS, WorkerHarness, expected_output
from tests.fakes.requests import a_request

PROMPT = (5, 6, 7)


def harness(
    *,
    blocks: int = 20,
    chunk: int = 64,
    role: Role = Role.UNIFIED,
    batching: str = "fcfs",
    runs_ahead: bool = True,
) -> WorkerHarness:
    info = WorkerInfo("w", "w:1", role, "m", 1, chunk, 4, blocks, 1000, 8)
    settings = WorkerSettings(watermark=0.0, runs_ahead=runs_ahead)
    core = WorkerCore(info, [EOS], registry.make("batching", batching), settings)
    return WorkerHarness(core, 4)


def asking(
    stream_id: int = 0,
    prompt: tuple[int, ...] = PROMPT,
    count: int = 6,
    stops: tuple[int, ...] = (),
) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=count, stop_token_ids=stops)
    return a_request(stream_id, prompt, sampling)


def dispatch(worker: WorkerHarness, *requests: Request) -> None:
    worker.post(Dispatch(requests[0].stream_id + 1, (UnitBatch(0, requests),)))


def keys(forward_pass: ForwardPass) -> list[int]:
    return [item.key.stream_id for item in forward_pass.items]


def free_blocks(worker: WorkerHarness) -> int:
    return worker.core.loads[0].num_free_blocks


def test_the_next_pass_is_there_before_the_one_in_flight_has_ended() -> None:
    worker = harness()
    dispatch(worker, asking())
    first, second = worker.passes
    assert [item.token_ids for item in first.items] == [PROMPT]
    (behind,) = second.items
    assert (behind.token_ids, behind.start, behind.sample) == ((PENDING,), 3, True)
    assert behind.num_output_tokens == 1
    worker.run_all()
    assert list(worker.tokens[0].values()) == expected_output(PROMPT, 6)
    assert free_blocks(worker) == 20


@pytest.mark.parametrize("runs_ahead", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_who_is_left_out_of_passes_gets_the_same_tokens_later(seed: int, runs_ahead: bool) -> None:
    worker = harness(runs_ahead=runs_ahead, blocks=12, chunk=5)
    draws = random.Random(seed)
    worker.model.is_late = lambda item: item.key.stream_id < 2 and draws.random() < 0.6
    requests = [asking(number, prompt=(5, 6, 7 + number) * (1 + number)) for number in range(4)]
    dispatch(worker, *requests)
    worker.run_all()
    for number, request in enumerate(requests):
        tokens = worker.tokens[number]
        expected = expected_output(request.prompt_token_ids, 6)
        assert [tokens[index] for index in range(6)] == expected
    assert free_blocks(worker) == 12


def test_a_pass_is_not_held_up_by_who_is_left_out_of_it() -> None:
    worker = harness()
    worker.model.is_late = lambda item: item.key.stream_id == 0
    dispatch(worker, asking(0), asking(1))
    for _ in range(20):
        worker.run_pass()
    assert list(worker.tokens[1].values()) == expected_output(PROMPT, 6)
    assert 0 not in worker.tokens
    worker.post(CancelStream(StreamKey("g", 0)))
    worker.run_all()
    assert free_blocks(worker) == 20


def test_who_ends_by_length_is_not_in_the_pass_behind() -> None:
    worker = harness()
    dispatch(worker, asking(0, count=1), asking(1, count=2))
    assert [keys(each) for each in worker.passes] == [[0, 1], [1]]
    worker.run_pass()
    assert worker.ends == {0: ["length"]}
    assert [keys(each) for each in worker.passes] == [[1]]
    worker.run_all()
    assert worker.ends[1] == ["length"]


def test_a_stop_drops_the_superfluous_token_and_keeps_its_blocks_until_that_is_computed() -> None:
    worker = harness()
    stop = expected_output(PROMPT, 1)[0]
    dispatch(worker, asking(stops=(stop,)))
    worker.run_pass()
    assert worker.ends == {0: ["stop"]}
    assert free_blocks(worker) == 19
    assert worker.core.num_held == 1
    worker.run_pass()
    assert worker.tokens == {0: {0: stop}}
    assert free_blocks(worker) == 20
    finished = [f for a in worker.log if isinstance(a, EndForward) for f in a.finished]
    assert [(f.num_output_tokens, f.finish_reason) for f in finished] == [(1, FinishReason.STOP)]


def test_a_cancelled_request_is_let_go_of_after_its_last_pass() -> None:
    worker = harness()
    dispatch(worker, asking())
    worker.post(CancelStream(StreamKey("g", 0)))
    worker.run_pass()
    assert worker.core.num_held == 1
    assert not worker.tokens
    worker.run_pass()
    assert (worker.core.num_held, free_blocks(worker)) == (0, 20)
    assert not worker.passes


def test_nobody_loses_blocks_to_a_pass_that_is_planned_ahead() -> None:
    worker = harness(blocks=4)
    dispatch(worker, asking(0, (1, 2, 3, 4), 8), asking(1, (4, 3, 2, 1), 8))
    seen = 0
    while worker.passes:
        if len(worker.passes) == 2:
            ahead = worker.passes[1]
            assert not ahead.swapped_out
            for item in ahead.items:
                assert len(item.block_table) * 4 >= item.start + len(item.token_ids)
        seen += worker.core.preemptions.num_forced
        worker.run_pass()
    assert seen, "the pool was too small for both"
    for stream_id, prompt in ((0, (1, 2, 3, 4)), (1, (4, 3, 2, 1))):
        assert list(worker.tokens[stream_id].values()) == expected_output(prompt, 8)


def test_a_better_request_takes_blocks_once_nothing_is_in_flight() -> None:
    worker = harness(blocks=4, batching="las")
    dispatch(worker, asking(0, (1, 2, 3, 4, 5, 6), 9))
    for _ in range(3):
        worker.run_pass()
    dispatch(worker, asking(1, (9, 8, 7, 6, 5, 4, 3, 2, 1), 3))
    worker.run_all()
    assert worker.core.preemptions.num_voluntary + worker.core.preemptions.num_forced
    assert list(worker.tokens[0].values()) == expected_output((1, 2, 3, 4, 5, 6), 9)
    assert list(worker.tokens[1].values()) == expected_output((9, 8, 7, 6, 5, 4, 3, 2, 1), 3)


def test_a_failed_pass_takes_the_one_behind_with_it_and_blames_its_own() -> None:
    worker = harness()
    dispatch(worker, asking(0), asking(1, (8, 9)))
    first, second = worker.passes
    worker.passes.clear()
    worker.post(PassFailed(first.pass_id, (StreamKey("g", 0),), "broken"))
    assert worker.ends == {0: ["error"]}
    assert not worker.passes
    worker.post(PassFailed(second.pass_id, tuple(i.key for i in second.items), "no such token"))
    assert worker.core.num_held == 1
    worker.run_all()
    assert worker.ends == {0: ["error"], 1: ["length"]}
    assert list(worker.tokens[1].values()) == expected_output((8, 9), 6)
    assert free_blocks(worker) == 20


def test_one_for_which_no_token_is_drawn_ends_alone_and_both_passes_count() -> None:
    worker = harness()
    dispatch(worker, asking(0), asking(1, (8, 9)))
    ran = worker.model.run(worker.passes.popleft())
    none = Sampled(StreamKey("g", 0), 0, problem=HeadwayError(Code.INVALID_ARGUMENT, "none"))
    worker.post(replace(ran, sampled=(none, *ran.sampled[1:])))
    assert worker.ends == {0: ["error"]}
    assert list(worker.tokens[1].values()) == expected_output((8, 9), 1)
    worker.run_pass()
    assert list(worker.tokens[1].values()) == expected_output((8, 9), 2)
    worker.run_all()
    assert worker.ends == {0: ["error"], 1: ["length"]}
    assert list(worker.tokens[1].values()) == expected_output((8, 9), 6)
    assert 0 not in worker.tokens
    assert free_blocks(worker) == 20


def test_a_result_without_its_base_is_not_believed() -> None:
    worker = harness(chunk=2)
    dispatch(worker, asking(0, (4,)), asking(1, (8, 9, 10, 11, 12)))
    first, second = worker.passes
    worker.passes.clear()
    worker.post(PassFailed(first.pass_id, (StreamKey("g", 0),), "broken"))
    worker.post(PassResult(second.pass_id, 0.01, ()))
    worker.run_all()
    assert list(worker.tokens[1].values()) == expected_output((8, 9, 10, 11, 12), 6)


def test_who_is_to_leave_does_so_after_its_last_pass() -> None:
    worker = harness()
    dispatch(worker, asking())
    worker.run_pass()
    worker.post(Handoff(StreamKey("g", 0), "other", "other:1", 0, 1))
    assert not worker.transfers
    worker.run_pass()
    assert not worker.transfers, "it is in a pass still"
    worker.run_pass()
    (start,) = worker.transfers
    assert isinstance(start, StartTransfer)
    assert list(start.request.output_token_ids) == list(worker.tokens[0].values())
    assert start.num_computed_tokens == start.request.num_tokens - 1
    assert PENDING not in start.request.output_token_ids


def test_a_prefill_worker_waits_for_what_is_dispatched_meanwhile() -> None:
    worker = harness(role=Role.PREFILL)
    dispatch(worker, asking())
    assert len(worker.passes) == 1


def test_prompts_alone_are_not_run_ahead_of() -> None:
    worker = harness(chunk=2)
    dispatch(worker, asking(prompt=(1, 2, 3, 4, 5)))
    assert len(worker.passes) == 1


def test_tokens_leave_while_the_pass_behind_runs() -> None:
    worker = harness()
    dispatch(worker, asking())
    result = worker.model.run(worker.passes.popleft())
    actions = worker.post(result)
    assert any(isinstance(action, SendTokens) for action in actions)
    assert len(worker.passes) == 2
