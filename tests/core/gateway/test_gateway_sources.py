"""Tokens come from the workers that the scheduler has named, and from nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cluster import Role
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import CancelTokens, SchedulerConnected
from headway.messages import Lost, Placed, TokenBatch
from headway.request import FinishReason, Request
from tests.fakes.gateway_core import (
    SETTINGS,
    delivered,
    failure,
    failures_in,
    gateway,
    opened,
    place,
    requests_in,
    resubmitted,
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


def test_a_worker_that_was_not_named_writes_into_no_answer() -> None:
    core = gateway()
    request = opened(core, on="w")
    core.handle(tokens(request.stream_id, 0, [7]), now=1.0)
    for first in (0, 1, 2):
        forged = tokens(request.stream_id, first, [66], end=FinishReason.STOP, worker="evil")
        assert core.handle(forged, now=1.0) == []
    assert core.next_wakeup == 60.0  # it has opened no gap
    assert delivered(core.handle(tokens(request.stream_id, 1, [8, 9]), now=1.0)) == [8, 9]
    assert core.streams.num_resubmitted == 0


def test_a_worker_that_was_not_named_fails_no_request_and_hangs_up_on_none() -> None:
    core = gateway()
    request = opened(core, on="v")
    assert core.handle(failure(request.stream_id), now=1.0) == []
    assert delivered(core.handle(tokens(request.stream_id, 0, [7], worker="v"), now=1.0)) == [7]


def test_tokens_that_come_before_the_word_on_their_worker_wait_for_it() -> None:
    core = gateway()
    request = opened(core, on="")
    assert core.handle(tokens(request.stream_id, 0, [7, 8]), now=1.0) == []
    (action,) = core.handle(placed(request, "w"), now=1.1)
    assert delivered([action]) == [7, 8]
    assert core.num_waiting == 0


def test_a_failure_that_comes_before_the_word_on_its_worker_waits_for_it() -> None:
    core = gateway()
    request = opened(core, on="")
    assert core.handle(failure(request.stream_id, FinishReason.CANCELLED), now=1.0) == []
    core.handle(placed(request, "w"), now=1.1)
    assert len(requests_in(core.wake(now=1.2))) == 1


def test_an_end_among_the_waiting_tokens_ends_the_request_and_the_rest_is_dropped() -> None:
    core = gateway()
    request = opened(core, on="")
    core.handle(tokens(request.stream_id, 0, [7], end=FinishReason.STOP), now=1.0)
    core.handle(tokens(request.stream_id, 1, [8], end=FinishReason.STOP), now=1.0)
    assert delivered(core.handle(placed(request, "w"), now=1.1)) == [7]
    assert core.num_open == 0


def test_no_more_than_a_small_number_of_tokens_waits() -> None:
    core = GatewayCore("g", "g:1", replace(SETTINGS, max_model_len=100_000))
    core.handle(SchedulerConnected(), now=0.0)
    (request,) = requests_in(core.handle(submit("r", max_tokens=10_000), now=0.0))
    for index in range(1000):
        core.handle(tokens(request.stream_id, index, [7]), now=1.0)
    assert len(delivered(core.handle(placed(request, "w"), now=1.1))) == 256


def test_the_target_of_a_move_is_read_while_its_source_still_is() -> None:
    core = gateway()
    request = opened(core, on="s")
    place(core, request, "s", target="t")
    assert delivered(core.handle(tokens(request.stream_id, 0, [1], worker="s"), now=1.0)) == [1]
    assert delivered(core.handle(tokens(request.stream_id, 1, [2], worker="t"), now=1.0)) == [2]


def test_a_source_that_has_given_its_request_away_fills_gaps_and_does_nothing_else() -> None:
    core = gateway()
    request = opened(core, on="s")
    core.handle(tokens(request.stream_id, 0, [1], worker="s"), now=1.0)
    place(core, request, "s", target="t")
    place(core, request, "t")
    assert core.handle(tokens(request.stream_id, 1, [2], worker="s"), now=1.0) == []
    assert delivered(core.handle(tokens(request.stream_id, 2, [3], worker="t"), now=1.0)) == [2, 3]
    late = tokens(request.stream_id, 3, [66], end=FinishReason.STOP, worker="s")
    assert core.handle(late, now=1.0) == []
    assert core.handle(failure(request.stream_id), now=1.0) == []
    assert delivered(core.handle(tokens(request.stream_id, 3, [4], worker="t"), now=1.0)) == [4]


def test_a_gap_is_not_filled_by_an_end_of_a_worker_that_gave_its_request_away() -> None:
    core = gateway()
    request = opened(core, on="s")
    core.handle(tokens(request.stream_id, 0, [1], worker="s"), now=1.0)
    place(core, request, "s", target="t")
    place(core, request, "t")
    end = tokens(request.stream_id, 1, [66], end=FinishReason.STOP, worker="s")
    assert core.handle(end, now=1.0) == []
    assert delivered(core.handle(tokens(request.stream_id, 2, [3], worker="t"), now=1.0)) == []
    assert core.num_open == 1
    core.wake(now=2.1)  # the gap has stayed open
    again = resubmitted(core, now=3.0, on="t")
    assert again.output_token_ids == (1,)


def test_a_copy_that_ends_before_what_was_read_is_another_computation() -> None:
    core = gateway()
    request = opened(core, on="s")
    place(core, request, "s", target="t")
    core.handle(tokens(request.stream_id, 0, [1, 2, 3], worker="s"), now=1.0)
    end = tokens(request.stream_id, 1, [2], end=FinishReason.STOP, worker="t")
    assert delivered(core.handle(end, now=1.0)) == []
    assert core.num_open == 1
    again = resubmitted(core, now=3.0, on="t")
    assert again.output_token_ids == (1, 2, 3)


def test_a_new_attempt_takes_nothing_that_waited_for_the_old_one() -> None:
    core = gateway()
    request = opened(core, on="")
    core.handle(tokens(request.stream_id, 0, [66]), now=1.0)
    core.handle(Lost((request.key,), "killed"), now=1.0)
    again = resubmitted(core, now=2.0, on="w")
    assert delivered(core.handle(tokens(again.stream_id, 0, [7]), now=2.0)) == [7]


def test_only_a_named_worker_learns_that_a_stream_is_unknown() -> None:
    core = gateway()
    assert core.handle(tokens(12345, 0, [1], worker="stranger"), now=0.0) == []
    request = opened(core, on="w")
    assert core.handle(tokens(request.stream_id, 0, [1], worker="stranger"), now=0.0) == []
    told = core.handle(tokens(12345, 0, [1], worker="w"), now=0.0)
    assert list(told) == [CancelTokens("w", (12345,))]


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


def test_a_copy_with_another_token_ends_the_attempt_and_is_not_read() -> None:
    core = gateway()
    request = opened(core, on="s")
    place(core, request, "s", target="t")
    core.handle(tokens(request.stream_id, 0, [1, 2], worker="s"), now=1.0)
    other = core.handle(tokens(request.stream_id, 1, [3, 4], worker="t"), now=1.0)
    assert delivered(other) == []
    (again,) = requests_in([*other, *core.wake(now=1.2)])
    assert again.output_token_ids == (1, 2)
