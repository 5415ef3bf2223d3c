"""Requests that begin alike share their first blocks; nothing else about them changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.cluster import Adapter
from headway.core.worker.events import PassFailed, SendTokens
from headway.forward_pass import ForwardPass
from headway.messages import CancelStream
from headway.policies.batching.fcfs import Fcfs
from headway.request import Request, StreamKey
from tests.fakes.paged import WorkerHarness, expected_output
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of

PREFIX = tuple(range(100, 112))  # three blocks


def asking(stream_id: int, prompt: Sequence[int], max_tokens: int = 5) -> Request:
    return replace(make_request(stream_id, max_tokens=max_tokens), prompt_token_ids=tuple(prompt))


def submit(worker: WorkerHarness, *requests: Request) -> None:
    worker.post(dispatch(*requests, dispatch_id=requests[0].stream_id))


def num_computed(worker: WorkerHarness, stream_id: int) -> int:
    passes = [a for a in worker.log if isinstance(a, ForwardPass)]
    items = [i for p in passes for i in p.items if i.key.stream_id == stream_id]
    return sum(len(item.token_ids) for item in items)


def num_cached(worker: WorkerHarness) -> dict[int, int]:
    """What each request's first token says."""
    batches = [a.batch for a in worker.log if isinstance(a, SendTokens)]
    return {b.stream_ids[n]: count for b in batches for n, count in b.num_cached.items()}


def assert_right(worker: WorkerHarness, *requests: Request) -> None:
    for request in requests:
        expected = expected_output(request.prompt_token_ids, request.sampling.max_tokens)
        assert output_of(worker, request.stream_id) == expected
    assert worker.core.num_held == 0
    assert worker.core.loads[0].num_free_blocks == 32


def test_requests_with_different_salts_share_nothing() -> None:
    worker = make_worker(prefix_caching=True)
    first, same = asking(1, (*PREFIX, 1)), asking(2, (*PREFIX, 2))
    salted = [replace(asking(n, (*PREFIX, n)), cache_salt=salt) for n, salt in ((3, "a"), (4, "b"))]
    again = replace(asking(5, (*PREFIX, 5), max_tokens=9), cache_salt="a")
    for request in (first, *salted, same, again):
        submit(worker, request)
        worker.run_all()
    assert num_cached(worker) == {2: 12, 5: 12}
    assert_right(worker, first, same, *salted, again)


def test_requests_with_different_adapters_share_nothing() -> None:
    worker = make_worker(prefix_caching=True, adapters=(Adapter("a", "1"), Adapter("b", "2")))
    asked = [("", ""), ("", "a"), ("", "b"), ("a", ""), ("s", "a"), ("", "a"), ("s", "a")]
    for n, (salt, adapter) in enumerate(asked):
        request = asking(n, (*PREFIX, n))
        submit(worker, replace(request, cache_salt=salt, adapter=adapter))
        worker.run_all()
    assert num_cached(worker) == {5: 12, 6: 12}


def test_a_known_prefix_is_not_computed_again_and_the_first_token_says_so() -> None:
    worker = make_worker(prefix_caching=True)
    first, second = asking(1, (*PREFIX, 1)), asking(2, (*PREFIX, 2, 3))
    submit(worker, first)
    worker.run_all()
    submit(worker, second)
    worker.run_all()
    assert num_computed(worker, 2) == 2 + 5 - 1
    assert num_cached(worker) == {2: 12}
    counts = worker.core.prefix_counts
    assert (counts.num_asked_tokens, counts.num_hit_tokens) == (13 + 14, 12)
    assert_right(worker, first, second)


def test_what_is_known_is_not_told_of_as_work_to_do() -> None:
    worker = make_worker(prefix_caching=True, chunk=13)
    submit(worker, asking(1, (*PREFIX, 1)))
    worker.run_pass()
    submit(worker, asking(2, (*PREFIX, 2, 3)))
    assert worker.core.loads[0].queued_prefill_tokens == 2
    worker.run_pass()
    worker.run_all()
    assert num_computed(worker, 2) == 2 + 5 - 1


def test_without_prefix_caching_everything_is_computed() -> None:
    worker = make_worker()
    for number in (1, 2):
        submit(worker, asking(number, PREFIX))
        worker.run_all()
    assert num_computed(worker, 2) == 12 + 5 - 1
    assert worker.core.prefix_counts.num_asked_tokens == 0


def test_a_whole_prompt_that_is_known_still_has_its_last_token_computed() -> None:
    worker = make_worker(prefix_caching=True)
    requests = [asking(number, PREFIX) for number in (1, 2)]
    for request in requests:
        submit(worker, request)
        worker.run_all()
    assert num_cached(worker) == {2: 8}
    assert_right(worker, *requests)


def served(worker: WorkerHarness) -> list[int]:
    """Who is in the pass that is next to run."""
    return [item.key.stream_id for item in worker.passes[0].items]


def test_of_two_that_arrive_together_the_second_waits_for_the_blocks_of_the_first() -> None:
    worker = make_worker(prefix_caching=True, chunk=64)
    requests = [asking(number, (*PREFIX, number)) for number in (1, 2, 3)]
    submit(worker, *requests[:2])
    assert served(worker) == [1]
    worker.run_pass()
    submit(worker, requests[2])
    worker.run_all()
    assert num_cached(worker) == {2: 12, 3: 12}
    assert_right(worker, *requests)


def test_who_waits_for_blocks_holds_back_nobody() -> None:
    worker = make_worker(prefix_caching=True, chunk=64)
    others = asking(3, range(50, 60))
    requests = [asking(1, (*PREFIX, 1)), asking(2, (*PREFIX, 2)), others]
    submit(worker, *requests)
    assert served(worker) == [1, 3]
    worker.run_all()
    assert_right(worker, *requests)


def test_blocks_of_a_long_prompt_are_shared_chunk_by_chunk() -> None:
    worker = make_worker(prefix_caching=True, chunk=8)
    long = asking(1, (*PREFIX[:8], *range(20, 60)))
    short = asking(2, (*PREFIX[:8], 7))
    submit(worker, long, short)
    assert served(worker) == [1]
    worker.run_pass()
    worker.run_all()
    assert num_cached(worker) == {2: 8}
    assert_right(worker, long, short)


def test_who_waits_for_a_request_that_is_cancelled_goes_on() -> None:
    worker = make_worker(prefix_caching=True, chunk=8)
    first, second = asking(1, (*PREFIX, 1)), asking(2, (*PREFIX, 2))
    submit(worker, first, second)
    worker.post(CancelStream(StreamKey("g", 1)))
    worker.run_pass()
    assert served(worker) == [2]
    worker.run_all()
    assert_right(worker, second)


def test_who_waits_for_a_request_that_fails_goes_on() -> None:
    worker = make_worker(prefix_caching=True, chunk=8)
    first, second = asking(1, (*PREFIX, 1)), asking(2, (*PREFIX, 2))
    submit(worker, first, second)
    worker.post(PassFailed(worker.passes.popleft().pass_id, (StreamKey("g", 1),), "not finite"))
    worker.run_all()
    assert num_cached(worker) == {}
    assert_right(worker, second)


def test_blocks_of_a_session_that_is_over_make_room_first() -> None:
    worker = make_worker(blocks=9, watermark=0.0, prefix_caching=True)
    other, over = asking(1, (*PREFIX, 1), 1), asking(2, range(20, 33), 1)
    submit(worker, other)
    worker.run_all()
    submit(worker, replace(over, ends_session=True))
    worker.run_all()
    submit(worker, asking(3, range(50, 64), 1))
    worker.run_all()
    for again in (4, 5):
        submit(worker, asking(again, (*(PREFIX if again == 4 else range(20, 32)), again), 1))
        worker.run_all()
    assert num_cached(worker) == {4: 12, 5: 8}  # nine blocks, of which the third needed one


def test_a_conversations_next_turn_begins_with_what_was_generated() -> None:
    worker = make_worker(prefix_caching=True)
    first = asking(1, PREFIX, max_tokens=10)
    submit(worker, first)
    worker.run_all()
    answer = output_of(worker, 1)
    second = asking(2, (*PREFIX, *answer, 7, 8))
    submit(worker, second)
    worker.run_all()
    assert num_cached(worker) == {2: 20}  # the last token's KV was never computed
    assert_right(worker, first, second)


def test_cancelling_one_leaves_the_other_its_blocks() -> None:
    worker = make_worker(prefix_caching=True)
    first, second = asking(1, (*PREFIX, 1), 20), asking(2, (*PREFIX, 2), 20)
    submit(worker, first)
    worker.run_pass()
    submit(worker, second)
    worker.run_pass()
    worker.run_pass()
    worker.post(CancelStream(StreamKey("g", 1)))
    worker.run_all()
    assert_right(worker, second)


def test_a_preempted_request_begins_with_what_is_left_of_its_own_blocks() -> None:
    worker = make_worker(blocks=8, batching=Fcfs(), watermark=0.0, prefix_caching=True)
    first, second = asking(1, range(8), 14), asking(2, range(50, 58), 14)
    submit(worker, first, second)
    worker.run_all()
    alone = 8 + 14 - 1
    assert alone < num_computed(worker, 2) < alone + 16
    assert output_of(worker, 2) == expected_output(range(50, 58), 14)
    assert num_cached(worker) == {}


def test_blocks_that_are_shared_need_no_room() -> None:
    worker = make_worker(blocks=6, watermark=0.0, prefix_caching=True)
    first, second = asking(1, (*PREFIX, 1, 2), 2), asking(2, (*PREFIX, 3, 4), 2)
    submit(worker, first)
    worker.run_pass()
    submit(worker, second)
    worker.run_pass()
    assert {i.key.stream_id for p in worker.passes for i in p.items} <= {2}
    assert num_computed(worker, 2) >= 2
    worker.run_all()
    assert output_of(worker, 2) == expected_output(second.prompt_token_ids, 2)


def test_a_failed_request_takes_what_it_began_with_out_of_the_cache() -> None:
    worker = make_worker(prefix_caching=True)
    submit(worker, asking(1, PREFIX, 1))
    worker.run_all()
    submit(worker, asking(2, (*PREFIX, 2)))
    failed = PassFailed(worker.passes.popleft().pass_id, (StreamKey("g", 2),), "not finite")
    worker.post(failed)
    last = asking(3, (*PREFIX, 3))
    submit(worker, last)
    worker.run_all()
    assert num_computed(worker, 3) == 13 + 5 - 1
    assert_right(worker, last)
