"""Cached prefixes live in host memory, too: they outlast the device's blocks and come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headway.blocks import block_names
from headway.core.worker.events import PassFailed
from headway.core.worker.host_prefixes import HostPrefixes
from headway.cost.costs import Costs
from headway.forward_pass import SAVED, ForwardPass
from headway.messages import CancelStream
from headway.request import Request, StreamKey
from tests.fakes.paged import WorkerHarness, expected_output
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of

PREFIX = tuple(range(100, 112))  # three blocks
FAST = Costs(prefill_per_token=1e-3, swap_per_token=2e-6)
"""Costs at which all new blocks are saved in one pass, and read rather than computed."""


def make(blocks: int = 8, host_tokens: int = 400, **settings: Any) -> WorkerHarness:
    asked: dict[str, Any] = {"costs": FAST, "watermark": 0.0, **settings}
    return make_worker(blocks=blocks, prefix_caching=True, host_tokens=host_tokens, **asked)


def ask(
    worker: WorkerHarness, stream_id: int, prompt: Sequence[int], max_tokens: int = 4, **fields: Any
) -> Request:
    request = make_request(stream_id, max_tokens=max_tokens)
    request = replace(request, prompt_token_ids=tuple(prompt), **fields)
    worker.post(dispatch(request, dispatch_id=stream_id))
    return request


def serve(worker: WorkerHarness, stream_id: int, prompt: Sequence[int], **fields: Any) -> None:
    """Ask, and check the answer."""
    request = ask(worker, stream_id, prompt, **fields)
    worker.run_all()
    expected = expected_output(request.prompt_token_ids, request.sampling.max_tokens)
    assert output_of(worker, stream_id) == expected


def crowd_out(worker: WorkerHarness, stream_id: int = 50) -> None:
    """Let another request take every block of the device."""
    num_blocks = worker.core.info.num_blocks
    serve(worker, stream_id, range(200, 200 + 4 * num_blocks - 3), max_tokens=3)


def hits(worker: WorkerHarness) -> tuple[int, int]:
    """Tokens that the cache had, and those of them that host memory had."""
    counts = worker.core.prefix_counts
    return counts.num_hit_tokens, counts.num_host_hit_tokens


def passes(worker: WorkerHarness) -> list[ForwardPass]:
    return [action for action in worker.log if isinstance(action, ForwardPass)]


def is_at_rest(worker: WorkerHarness) -> bool:
    (unit,) = worker.core.units
    unit.host.settle()
    is_free = unit.pool.num_free == unit.pool.num_blocks and unit.host.num_free == 100
    return is_free and not unit.saving and not unit.host.prefixes.num_busy


@pytest.mark.parametrize("beside", [False, True])
def test_a_prefix_that_has_left_the_device_comes_back(beside: bool) -> None:
    worker = make(swaps_beside=beside)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    serve(worker, 2, (*PREFIX, 2))
    assert hits(worker) == (12, 12)
    (swap,) = [swap for each in passes(worker) for swap in each.swapped_in]
    assert (swap.key, swap.num_tokens) == (StreamKey("g", 2), 12)
    assert is_at_rest(worker)


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_pass_reads_is_not_given_away(beside: bool) -> None:
    worker = make(swaps_beside=beside)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    ask(worker, 2, (*PREFIX, 2))
    host = worker.core.units[0].host
    (swap,) = worker.passes[0].swapped_in
    table: list[int] = []
    assert host.grow(table, 4 * host.num_free)
    assert not set(table) & set(swap.host_blocks)
    assert len(table) + len(swap.host_blocks) <= 100


def test_a_hit_in_host_memory_begins_where_the_device_ends() -> None:
    worker = make()
    serve(worker, 1, (*PREFIX, 1))
    serve(worker, 50, range(200, 220), max_tokens=3)  # six of eight blocks: the first two stay
    serve(worker, 2, (*PREFIX, 2))
    assert hits(worker) == (12, 4)


def test_what_is_back_is_shared_on_the_device() -> None:
    worker = make(blocks=10)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    serve(worker, 2, (*PREFIX, 2))
    serve(worker, 3, (*PREFIX, 3))
    assert hits(worker) == (24, 12)


@pytest.mark.parametrize("beside", [False, True])
def test_two_prompts_read_what_they_share_once(beside: bool) -> None:
    worker = make(blocks=16, swaps_beside=beside)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    first, second = (make_request(n, max_tokens=4) for n in (2, 3))
    both = [
        replace(each, prompt_token_ids=(*PREFIX, 9, each.stream_id)) for each in (first, second)
    ]
    worker.post(dispatch(*both, dispatch_id=9))
    worker.run_all()
    assert hits(worker) == (24, 12)
    for request in both:
        expected = expected_output(request.prompt_token_ids, 4)
        assert output_of(worker, request.stream_id) == expected


def test_without_the_second_tier_it_is_computed_again() -> None:
    worker = make(host_prefixes=False)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    serve(worker, 2, (*PREFIX, 2))
    assert hits(worker) == (0, 0)
    assert not any(each.saved for each in passes(worker))


def test_what_is_sooner_computed_is_not_read() -> None:
    worker = make(costs=Costs(prefill_per_token=1e-3, swap_per_token=1.0))
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    assert worker.core.units[0].host.prefixes.count(block_names(PREFIX, 4)) == 3
    serve(worker, 2, (*PREFIX, 2))
    assert hits(worker) == (0, 0)


def test_a_pass_saves_no_more_than_it_has_time_for() -> None:
    # A quarter of the fake's 10 ms at 0.5 ms a token is a block of four tokens.
    worker = make(costs=Costs(prefill_per_token=1e-3, swap_per_token=1e-3))
    serve(worker, 1, range(20), max_tokens=6)
    assert {swap.num_tokens for each in passes(worker) for swap in each.saved} == {4}


def test_nothing_is_saved_where_nothing_is_computed() -> None:
    worker = make(costs=Costs(prefill_per_token=1e-3, swap_per_token=1e-3))
    serve(worker, 1, range(20), max_tokens=1)
    assert all(each.items for each in passes(worker))


def test_preempted_requests_take_the_room_of_prefixes() -> None:
    worker = make(host_tokens=32)
    serve(worker, 1, (*PREFIX, 1))
    (unit,) = worker.core.units
    host, table = unit.host, list[int]()
    assert host.prefixes.num_idle
    assert host.grow(table, 32)
    assert not host.prefixes.num_idle
    assert len(set(table)) == 8


def test_the_least_recently_used_prefix_leaves_host_memory_first() -> None:
    worker = make(blocks=32, host_tokens=24)  # two prompts of three blocks
    for stream_id in (1, 2, 3):
        if stream_id == 3:  # a use makes the first young again
            serve(worker, 4, (*range(10, 22), 7), max_tokens=1)
        serve(worker, stream_id, (*range(10 * stream_id, 10 * stream_id + 12), 1), max_tokens=2)
    assert [num_kept(worker, stream_id) > 0 for stream_id in (1, 2, 3)] == [True, False, True]


def num_kept(worker: WorkerHarness, stream_id: int) -> int:
    """Blocks of a prompt of these tests that host memory has."""
    names = block_names(range(10 * stream_id, 10 * stream_id + 12), 4)
    return worker.core.units[0].host.prefixes.count(names)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("is_blamed", [False, True])
def test_a_read_that_fails_is_computed(beside: bool, is_blamed: bool) -> None:
    worker = make(swaps_beside=beside)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    request = ask(worker, 2, (*PREFIX, 2))
    failed = worker.passes.popleft()
    assert failed.swapped_in
    keys = (StreamKey("g", 2),) if is_blamed else (StreamKey("g", 77),)
    worker.post(PassFailed(failed.pass_id, keys, "no memory"))
    if is_blamed:
        assert not worker.passes[0].swapped_in
    worker.run_all()
    assert output_of(worker, 2) == expected_output(request.prompt_token_ids, 4)
    assert is_at_rest(worker)


def test_a_save_that_fails_ends_no_request_and_saves_nothing() -> None:
    worker = make()
    request = ask(worker, 1, (*PREFIX, 1))
    while not worker.passes[0].saved:
        worker.run_pass()
    worker.post(PassFailed(worker.passes.popleft().pass_id, (SAVED,), "no memory"))
    assert worker.core.units[0].host.prefixes.num_idle == 0
    worker.run_all()
    assert output_of(worker, 1) == expected_output(request.prompt_token_ids, 4)
    assert is_at_rest(worker)


@pytest.mark.parametrize("beside", [False, True])
def test_who_is_cancelled_while_it_reads_leaves_all_in_order(beside: bool) -> None:
    worker = make(swaps_beside=beside)
    serve(worker, 1, (*PREFIX, 1))
    crowd_out(worker)
    ask(worker, 2, (*PREFIX, 2))
    worker.post(CancelStream(StreamKey("g", 2)))
    worker.run_all()
    assert is_at_rest(worker)
    serve(worker, 3, (*PREFIX, 3))


def test_kv_at_fault_leaves_host_memory_too() -> None:
    worker = make(blocks=16)
    serve(worker, 1, PREFIX)
    ask(worker, 2, (*PREFIX, 2))
    worker.post(PassFailed(worker.passes.popleft().pass_id, (StreamKey("g", 2),), "not finite"))
    before = hits(worker)
    serve(worker, 3, (*PREFIX, 3))
    assert hits(worker) == before


def test_blocks_of_a_session_that_is_over_leave_host_memory_first() -> None:
    worker = make(blocks=32, host_tokens=24)
    serve(worker, 1, (*range(10, 22), 1), max_tokens=2)
    serve(worker, 2, (*range(20, 32), 1), max_tokens=2, ends_session=True)
    serve(worker, 3, (*range(30, 42), 1), max_tokens=2)
    assert num_kept(worker, 1) == num_kept(worker, 3) == 3


def test_a_block_that_two_passes_read_makes_room_once_both_have_ended() -> None:
    prefixes, readers = HostPrefixes(4), (StreamKey("g", 1), StreamKey("g", 2))
    prefixes.begin_save([("a", 0)], [7])
    assert prefixes.end_save(7, ok=True)
    for key in readers:
        assert prefixes.begin_read(key, ["a"]) == (7,)
    for key, num_idle in zip(readers, (0, 1), strict=True):
        assert prefixes.end_read(key, ok=True) == []
        assert prefixes.num_idle == num_idle
