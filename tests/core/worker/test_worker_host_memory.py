"""A preempted request's KV waits in host memory, and comes back or moves on from there."""

from __future__ import annotations

from headway.cluster import Role
from headway.core.worker.events import LeaderConnected, PassFailed
from headway.forward_pass import ForwardPass
from headway.messages import CancelStream, Handoff, LoadReport, WantedReports
from headway.policies.batching.fcfs import Fcfs
from headway.policies.batching.pascal import Pascal, PascalParams
from headway.request import StreamKey
from tests.fakes.paged import WorkerHarness, expected_output, transfer
from tests.fakes.worker_core import (
    crowded,
    dispatch,
    make_request,
    make_worker,
    num_swapped,
    output_of,
    reports,
)


def is_preempted(worker: WorkerHarness) -> bool:
    return worker.core.loads[0].host_tokens > 0


def until_preempted(worker: WorkerHarness) -> None:
    while not is_preempted(worker):
        assert worker.run_pass()


def test_kv_comes_back_from_host_memory_and_nothing_is_computed_again() -> None:
    worker = crowded(100)
    worker.run_all()
    assert num_swapped(worker) == (1, 1)
    passes = [a for a in worker.log if isinstance(a, ForwardPass)]
    computed = sum(len(item.token_ids) for each in passes for item in each.items)
    assert computed == 2 * (8 + 14 - 1)  # the last token needs no KV
    for number in (1, 2):
        assert output_of(worker, number) == expected_output(range(number + 1, number + 9), 14)


def test_kv_that_finds_no_blocks_waits_in_the_targets_host_memory() -> None:
    source = make_worker(Role.PREFILL)
    source.post(dispatch(make_request(1, 12, max_tokens=4)))
    source.run_all()
    target = make_worker(Role.DECODE, blocks=8, watermark=0.0, host_tokens=100)
    target.post(dispatch(make_request(2, 27, max_tokens=4)))
    target.run_pass()
    source.post(Handoff(StreamKey("g", 1), "w2", "w2:1", 0, 1))
    assert transfer(source, target)
    assert target.core.loads[0].host_tokens == 12
    target.run_all()
    assert output_of(source, 1) + output_of(target, 1) == expected_output(range(2, 14), 4)


# --- reports --------------------------------------------------------------------------


def test_the_end_of_reasoning_is_reported_with_phases_where_they_are_asked_for() -> None:
    prompt = range(2, 8)
    marker = expected_output(prompt, 3)[2]
    worker = make_worker(batching=Pascal(PascalParams()), end_of_reasoning=(marker,))
    worker.post(LeaderConnected(WantedReports(phases=True)))
    request = make_request(1, max_tokens=9)
    object.__setattr__(request, "reasons", True)
    worker.post(dispatch(request))
    worker.run_pass()
    assert reports(worker)[-1].loads[0].num_reasoning == 1
    worker.run_pass()
    worker.run_pass()
    last = reports(worker)[-1]
    assert [held.key.stream_id for held in last.answering] == [1]
    assert (last.loads[0].num_reasoning, last.loads[0].num_fresh_answering) == (0, 1)


def test_running_requests_are_reported_with_their_simulated_future() -> None:
    worker = make_worker(report_interval=0.0)
    worker.post(LeaderConnected(WantedReports(load_interval=0.0, num_steps=3, step_tokens=2)))
    request = make_request(1, max_tokens=9)
    object.__setattr__(request, "predicted_output_tokens", 5.0)
    worker.post(dispatch(request))
    worker.run_pass()
    idle, running = [a for a in worker.log if isinstance(a, LoadReport)][:2]
    assert idle.units[0].keys == ()
    (unit,) = running.units
    assert (unit.keys, unit.num_tokens) == ((StreamKey("g", 1),), (6,))
    assert unit.remaining == (4.0,)
    assert unit.future == (8.0, 0.0, 0.0)


def test_a_worker_that_has_nothing_left_says_so_at_once() -> None:
    worker = make_worker(report_interval=1e9)
    worker.post(LeaderConnected(WantedReports(load_interval=1e9)))
    worker.post(dispatch(make_request(1, max_tokens=3)))
    worker.run_all()
    reported = [len(a.units[0].keys) for a in worker.log if isinstance(a, LoadReport)]
    assert reported == [0, 0]  # as the scheduler came, and at the end


# --- swaps in flight ------------------------------------------------------------------


def test_a_move_out_of_host_memory_waits_until_the_kv_is_there() -> None:
    source, target = crowded(100), make_worker(Role.DECODE)
    until_preempted(source)
    assert source.passes[0].swapped_out
    source.post(Handoff(StreamKey("g", 2), "w2", "w2:1", 0, 1))
    assert not source.transfers
    source.run_pass()
    assert transfer(source, target)
    target.run_all()
    source.run_all()
    assert output_of(source, 2) + output_of(target, 2) == expected_output(range(3, 11), 14)


def test_host_blocks_of_a_swap_in_flight_come_free_when_the_pass_has_ended() -> None:
    worker = crowded(100)
    host = worker.core.units[0].host
    until_preempted(worker)
    num_taken = 25 - host.num_free
    assert num_taken
    worker.post(CancelStream(StreamKey("g", 2)))
    assert host.num_free == 25 - num_taken
    worker.run_pass()
    assert host.num_free == 25


def test_a_pass_that_failed_before_its_swaps_loses_no_token() -> None:
    worker = crowded(100)
    until_preempted(worker)
    worker.post(PassFailed(worker.passes.popleft().pass_id, (), "the device is gone"))
    assert worker.ends == {1: ["error"]}
    worker.run_all()
    assert output_of(worker, 2) == expected_output(range(3, 11), 14)


def beside(host_tokens: int = 100) -> WorkerHarness:
    """The same two, whose KV comes back beside a pass."""
    worker = make_worker(
        blocks=8, batching=Fcfs(), watermark=0.0, host_tokens=host_tokens, swaps_beside=True
    )
    worker.post(dispatch(make_request(1, 8, max_tokens=14), make_request(2, 8, max_tokens=14)))
    return worker


def until_it_returns(worker: WorkerHarness) -> ForwardPass:
    while not worker.passes[0].swapped_in:
        assert worker.run_pass()
    return worker.passes[0]


def test_who_is_cancelled_on_the_way_back_keeps_its_blocks_until_it_is_there() -> None:
    worker = beside()
    (swap,) = until_it_returns(worker).swapped_in
    num_free = worker.core.loads[0].num_free_blocks
    worker.post(CancelStream(swap.key))
    assert worker.core.loads[0].num_free_blocks == num_free
    worker.run_all()
    assert worker.core.loads[0].num_free_blocks == 8
    assert worker.core.num_held == 0
