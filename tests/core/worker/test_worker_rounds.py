"""A running request's full blocks leave while it runs; it stops for what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from headway.cluster import Role
from headway.core.worker.events import (
    AcceptKv,
    KvContinued,
    PassFailed,
    RefuseKv,
    StartTransfer,
    StopTransfer,
    TransferEnded,
)
from headway.errors import Code
from headway.messages import Handoff, HandoffResult
from headway.policies.batching.fcfs import Fcfs
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, break_off, expected_output, transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of

KEY = StreamKey("g", 1)
MOVE = Handoff(KEY, "w2", "w2:1", 0, 1)
PROMPT = 21


def moving(*, rounds: int = 3, max_tokens: int = 30, **options: Any) -> WorkerHarness:
    """A worker with two blocks' more than a request's prompt computed, that is told to move it."""
    worker = make_worker(Role.DECODE, chunk=64, move_rounds=rounds, **options)
    worker.post(dispatch(make_request(1, PROMPT, max_tokens=max_tokens)))
    for _ in range(3):
        worker.run_pass()
    worker.post(MOVE)
    return worker


def parts(worker: WorkerHarness) -> list[tuple[int, int, bool]]:
    starts = [a for a in worker.log if isinstance(a, StartTransfer)]
    return [(s.first_token, s.num_computed_tokens, s.more) for s in starts]


def results(worker: WorkerHarness) -> list[bool]:
    return [a.ok for a in worker.log if isinstance(a, HandoffResult)]


def assert_whole(source: WorkerHarness, target: WorkerHarness, max_tokens: int = 30) -> None:
    source.run_all()
    target.run_all()
    first, rest = source.tokens[1], target.tokens.get(1, {})
    assert not set(first) & set(rest)
    whole = {**first, **rest}
    assert [whole[n] for n in range(max_tokens)] == expected_output(
        range(2, 2 + PROMPT), max_tokens
    )
    for worker in (source, target):
        assert worker.core.num_held == 0
        (load,) = worker.core.loads
        assert load.num_free_blocks == 32


def test_it_runs_on_while_full_blocks_are_sent_and_stops_for_less_than_a_block() -> None:
    source, target = moving(), make_worker(Role.DECODE)
    assert parts(source) == [(0, 20, True)]
    for _ in range(6):
        source.run_pass()
    assert len(source.tokens[1]) == 9
    assert transfer(source, target)
    assert parts(source)[1:] == [(20, 28, True)]
    source.run_pass()
    assert transfer(source, target)
    assert len(parts(source)) == 2  # under a block is left: it goes when its pass has ended
    source.run_pass()
    assert parts(source)[2:] == [(28, 31, False)]
    assert not source.passes
    assert transfer(source, target)
    assert results(source) == [True]
    assert_whole(source, target)


def test_a_part_that_takes_back_what_has_come_is_refused() -> None:
    source, target = moving(), make_worker(Role.DECODE)
    assert transfer(source, target)
    less = target.post(KvContinued(KEY, 16, ()))
    (answer,) = [a for a in less if isinstance(a, AcceptKv | RefuseKv)]
    assert isinstance(answer, RefuseKv)
    assert answer.error.code is Code.INVALID_ARGUMENT


def test_after_so_many_rounds_it_stops_however_much_is_left() -> None:
    source, target = moving(rounds=1), make_worker(Role.DECODE)
    for _ in range(9):
        source.run_pass()
    transfer(source, target)
    source.run_pass()
    assert parts(source) == [(0, 20, True), (20, 33, False)]
    transfer(source, target)
    assert_whole(source, target)


def test_one_with_less_than_a_block_stops_at_once() -> None:
    source = make_worker(Role.DECODE, block_size=32, move_rounds=3)
    source.post(dispatch(make_request(1, max_tokens=9)))
    source.run_pass()
    source.post(MOVE)
    source.run_pass()
    assert parts(source) == [(0, 7, False)]


def test_one_that_ends_meanwhile_goes_nowhere() -> None:
    source, target = moving(max_tokens=5), make_worker(Role.DECODE)
    start = source.transfers[0]
    source.run_all()
    assert [a.key for a in source.log if isinstance(a, StopTransfer)] == [KEY]
    break_off(source, target, start)
    assert results(source) == [False]
    assert_whole(source, target, 5)


@pytest.mark.parametrize("fails", [False, True])
def test_one_that_its_target_had_before_leaves_once_its_pass_has_ended(fails: bool) -> None:
    source = moving()  # the target said so to the first round
    assert source.passes
    source.post(TransferEnded(KEY, "w2", 0, ok=True))
    assert results(source) == [True]
    assert source.core.num_held == 1
    drawn = dict(source.tokens[1])
    if fails:
        source.post(PassFailed(source.passes.popleft().pass_id, (), "the device failed"))
    source.run_all()
    assert source.tokens[1] == drawn
    assert (source.core.num_held, source.core.loads[0].num_free_blocks) == (0, 32)


def test_a_target_without_room_for_its_growth_leaves_it_where_it_is() -> None:
    source, target = moving(), make_worker(Role.DECODE, blocks=9)
    target.post(dispatch(make_request(5, 6)))
    for _ in range(6):
        source.run_pass()
    assert transfer(source, target)
    assert not transfer(source, target)
    (refused,) = [a for a in target.log if isinstance(a, RefuseKv)]
    assert "no room" in refused.error.message
    source.run_all()
    assert output_of(source, 1) == expected_output(range(2, 2 + PROMPT), 30)
    assert target.core.loads[0].num_free_blocks == 7
    target.run_all()
    assert target.core.loads[0].num_free_blocks == 9


def outgrowing(host_tokens: int) -> WorkerHarness:
    """Two requests that outgrow their worker."""
    worker = make_worker(
        Role.DECODE,
        blocks=8,
        batching=Fcfs(),
        watermark=0.0,
        host_tokens=host_tokens,
        move_rounds=3,
    )
    worker.post(dispatch(make_request(1, 8, max_tokens=14), make_request(2, 8, max_tokens=14)))
    return worker


def crowded(host_tokens: int) -> tuple[WorkerHarness, WorkerHarness]:
    """The same; the second is preempted during its first round."""
    source = outgrowing(host_tokens)
    source.run_pass()
    source.run_pass()
    source.post(Handoff(StreamKey("g", 2), "w2", "w2:1", 0, 1))
    while not source.core.preemptions.num_forced:
        assert source.run_pass()
    return source, make_worker(Role.DECODE)


def test_no_round_begins_while_its_kv_comes_back_from_host_memory() -> None:
    source, target = outgrowing(100), make_worker(Role.DECODE)
    while not source.passes[0].swapped_in:
        source.run_pass()
    key = source.passes[0].swapped_in[0].key
    source.post(Handoff(key, "w2", "w2:1", 0, 1))
    assert not source.transfers, "a pass still copies into its blocks"
    source.run_pass()
    transfer(source, target)
    source.run_all()
    target.run_all()
    number = key.stream_id
    moved = output_of(source, number) + output_of(target, number)
    assert moved == expected_output(range(number + 1, number + 9), 14)


def test_one_that_loses_its_kv_in_a_round_stays() -> None:
    source, target = crowded(0)
    start = source.transfers[0]
    transfer(source, target)
    assert [a.key.stream_id for a in source.log if isinstance(a, StopTransfer)] == [2]
    break_off(source, target, start)
    source.run_all()
    for number in (1, 2):
        assert output_of(source, number) == expected_output(range(number + 1, number + 9), 14)
    assert source.core.loads[0].num_free_blocks == 8
    assert target.core.loads[0].num_free_blocks == 32
