"""MemGuard's credits: what a request has spent on one worker is spent on the next."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from headway.cluster import Role
from headway.core.worker.events import SendTokens
from headway.errors import HeadwayError
from headway.messages import Handoff
from headway.policies.batching.uniboost import UniBoost
from headway.request import StreamKey
from tests.fakes.paged import transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker, reports

KEY = StreamKey("g", 1)


def test_credits_spent_elsewhere_do_not_come_back() -> None:
    policy = UniBoost()
    policy.recall(KEY, 2)
    policy.recall(KEY, 1)
    assert policy.levels_spent(KEY) == 2
    policy.forget(KEY)
    assert policy.levels_spent(KEY) == 0


def test_a_moved_request_takes_its_spent_credits_along() -> None:
    source, target = make_worker(batching=UniBoost()), make_worker(Role.DECODE, batching=UniBoost())
    source.post(dispatch(replace(make_request(1, 8, max_tokens=20), levels_spent=3)))
    for _ in range(3):
        source.run_pass()
    source.post(Handoff(KEY, "w2", "w2:1", 0, 1))
    while not source.transfers:
        assert source.run_pass()
    assert transfer(source, target)
    moved = target.core.find(KEY)
    assert moved is not None
    assert moved.levels_spent == 3


@pytest.mark.parametrize("levels", [-1, 65])
def test_a_number_of_levels_that_cannot_be_is_refused(levels: int) -> None:
    with pytest.raises(HeadwayError, match="levels_spent"):
        replace(make_request(1), levels_spent=levels)


def test_each_token_tells_the_gateway_what_was_spent() -> None:
    worker = make_worker(batching=UniBoost())
    worker.post(dispatch(make_request(1, 8, max_tokens=6)))
    worker.run_pass()
    sequence = worker.core.find(KEY)
    assert sequence is not None
    sequence.levels_spent = 2
    worker.run_pass()
    sent = [action.batch.levels_spent for action in worker.log if isinstance(action, SendTokens)]
    assert sent == [{}, {0: 2}]


def test_a_request_counts_the_passes_that_served_it_here_and_elsewhere() -> None:
    worker = make_worker()
    worker.post(dispatch(replace(make_request(1, 8, max_tokens=3), served=10.0)))
    worker.post(dispatch(make_request(2, 8, max_tokens=2), dispatch_id=2))
    worker.run_all()
    ended = {f.key.stream_id: f for report in reports(worker) for f in report.finished}
    times = [report.pass_time for report in reports(worker) if report.pass_time]
    assert ended[1].served == pytest.approx(10.0 + 3 * times[0])
    assert ended[2].served == pytest.approx(2 * times[0])


def test_served_seconds_that_cannot_be_are_refused() -> None:
    with pytest.raises(HeadwayError, match="served"):
        replace(make_request(1), served=nan)
