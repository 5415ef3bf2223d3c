"""A worker with prompts left over waits a moment for the scheduler's top-up."""

from __future__ import annotations

from headway.forward_pass import ForwardPass
from tests.fakes.paged import WorkerHarness
from tests.fakes.worker_core import dispatch, make_request, make_worker, output_of


def leftover(linger: float = 0.5) -> WorkerHarness:
    """A worker whose first pass has ended with half of its prompt to go."""
    worker = make_worker(chunk=8, linger=linger)
    worker.post(dispatch(make_request(1, prompt=12, max_tokens=1)))
    worker.run_pass()
    return worker


def test_the_next_pass_waits_for_the_dispatch_and_takes_it_along() -> None:
    worker = leftover()
    assert not worker.passes
    worker.post(dispatch(make_request(2, prompt=4, max_tokens=1), dispatch_id=2))
    assert [item.key.stream_id for item in worker.passes[0].items] == [1, 2]
    assert worker.core.next_wakeup is None


def test_the_next_pass_begins_without_a_dispatch_when_the_time_is_up() -> None:
    worker = leftover()
    at = worker.core.next_wakeup
    assert at is not None
    (action,) = worker.core.wake(now=at)
    assert isinstance(action, ForwardPass)
    assert worker.core.next_wakeup is None


def test_nothing_left_over_means_no_waiting() -> None:
    worker = make_worker(chunk=8, linger=0.5)
    worker.post(dispatch(make_request(1, prompt=4, max_tokens=2)))
    worker.run_pass()
    assert worker.passes


def test_decoding_requests_are_never_kept_waiting() -> None:
    worker = make_worker(chunk=8, linger=0.5)
    worker.post(dispatch(make_request(1, prompt=2, max_tokens=9)))
    worker.run_pass()
    worker.post(dispatch(make_request(2, prompt=30, max_tokens=1), dispatch_id=2))
    worker.run_pass()
    assert worker.passes
    worker.run_all()
    assert len(output_of(worker, 1)) == 9


def test_no_linger_is_the_default_of_the_core() -> None:
    assert leftover(0.0).passes
