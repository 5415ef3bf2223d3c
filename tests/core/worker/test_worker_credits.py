"""MemGuard's credits: what a request has spent on one worker is spent on the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.errors import HeadwayError
from headway.messages import Handoff
from headway.policies.batching.uniboost import UniBoost
from headway.request import StreamKey
from tests.fakes.paged import transfer
from tests.fakes.worker_core import dispatch, make_request, make_worker

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
