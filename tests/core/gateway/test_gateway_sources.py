"""Tokens come from the workers that the scheduler has named, and from nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import SchedulerConnected
from headway.messages import Placed, TokenBatch
from headway.request import FinishReason, Request
from tests.fakes.gateway_core import (
    SETTINGS,
    delivered,
    failures_in,
    gateway,
    opened,
    requests_in,
    submit,
    tokens,
)


def placed(request: Request, on: str) -> Placed:
    return Placed(request.key, on, 0, Role.UNIFIED)


def joined(one: TokenBatch, other: TokenBatch) -> TokenBatch:
    """Both in one batch."""
    return replace(
        one,
        stream_ids=[*one.stream_ids, *other.stream_ids],
        indices=[*one.indices, *other.indices],
        token_ids=[*one.token_ids, *other.token_ids],
        finish_reasons=[*one.finish_reasons, *other.finish_reasons],
    )


def test_no_more_than_a_small_number_of_tokens_waits() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, max_model_len=100_000))
    core.handle(SchedulerConnected(), now=0.0)
    (request,) = requests_in(core.handle(submit("r", max_tokens=10_000), now=0.0))
    for index in range(1000):
        core.handle(tokens(request.stream_id, index, [7]), now=1.0)
    assert len(delivered(core.handle(placed(request, "w"), now=1.1))) == 256


@pytest.mark.parametrize("end", [None, FinishReason.STOP])
def test_a_worker_that_sends_more_than_was_asked_for_is_replaced(end: FinishReason | None) -> None:
    core = gateway()
    request = opened(core)  # 10 tokens at most
    assert core.handle(tokens(request.stream_id, 2**31, [7], end=end), now=1.0)
    (again,) = requests_in(core.wake(now=1.1))
    assert again.output_token_ids == ()


def test_an_early_end_before_another_end_is_one_end() -> None:
    core = gateway()
    request, other = opened(core, "r"), opened(core, "s")
    core.handle(tokens(request.stream_id, 1, [8], end=FinishReason.STOP), now=1.0)
    both = joined(
        tokens(request.stream_id, 0, [7], end=FinishReason.STOP), tokens(other.stream_id, 0, [9])
    )
    assert delivered(core.handle(both, now=1.0)) == [7, 9]
    assert core.num_open == 1
    assert not failures_in(core.wake(now=5.0))


def test_stream_ids_are_drawn_and_a_drawn_one_is_not_used_twice() -> None:
    drawn = iter([5, 5, 5, 2**64 - 1])
    core = GatewayCore("g", "g:1", SETTINGS, draw_stream_id=lambda: next(drawn))
    core.handle(SchedulerConnected(), now=0.0)
    assert [opened(core, name).stream_id for name in "ab"] == [5, 2**64 - 1]
