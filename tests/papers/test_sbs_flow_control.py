"""Staggered Batch Scheduling, Algorithm 2, phase 3: N_limit, throttling, rejection."""

from __future__ import annotations

import pytest

from headway.core.scheduler.places import InWindow, Tracked
from headway.core.scheduler.window import DispatchWindow, is_left_over
from headway.errors import HeadwayError
from headway.policies.packing.flow_control import FlowControl, FlowLevel
from tests.fakes.scheduler_text import key, make_request

CYCLE = 0.1


def make_window(num_cycles: int = 2) -> DispatchWindow:
    return DispatchWindow(FlowControl(num_cycles=num_cycles))


def add(window: DispatchWindow, *stream_ids: int, attempt: int = 0) -> None:
    for stream_id in stream_ids:
        request = make_request(stream_id, attempt=attempt)
        entry = Tracked(request.key, request.request_id, "m", InWindow(), request, 10, 0.0)
        window.add(entry)


def cycles(window: DispatchWindow, count: int, *, start: float = 0.0) -> None:
    for i in range(count):
        window.end_cycle(CYCLE, now=start + i * CYCLE)


def admitted(window: DispatchWindow) -> list[int]:
    return [entry.key.stream_id for entry in window.admitted]


def test_a_request_that_was_left_over_is_legacy_in_the_next_cycle() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 1)
    add(window, 2)
    assert [(e.key, is_left_over(e)) for e in window.admitted] == [(key(1), True), (key(2), False)]


def test_waiting_up_to_the_limit_triggers_nothing() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 2)
    assert (window.longest_wait, window.level) == (2, FlowLevel.OPEN)


def test_waiting_beyond_the_limit_throttles_and_beyond_twice_the_limit_rejects() -> None:
    window = make_window()
    add(window, 1)
    levels = []
    for cycle in range(5):
        cycles(window, 1, start=cycle * CYCLE)
        levels.append(window.level)
    assert levels == [FlowLevel.OPEN] * 2 + [FlowLevel.THROTTLED] * 2 + [FlowLevel.REJECTING]


def test_a_cycle_counts_once_however_often_a_dispatch_is_tried_in_it() -> None:
    window = make_window()
    add(window, 1)
    for i in range(50):
        window.end_cycle(CYCLE, now=i * CYCLE / 100)
    assert window.longest_wait == 1


def test_newcomers_of_a_throttled_window_enter_at_half_the_rate_of_leaving() -> None:
    window = make_window()
    add(window, 1, 2, 3, 4, 5)
    cycles(window, 3)
    add(window, 6, 7, 8)
    assert admitted(window) == [1, 2, 3, 4, 5]
    window.dispatched([key(5)])
    assert admitted(window) == [1, 2, 3, 4]
    window.dispatched([key(4)])
    assert admitted(window) == [1, 2, 3, 6]
    assert window.num_waiting == 6


def test_the_door_opens_when_nobody_has_waited_too_long() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 3)
    add(window, 2, 3)
    assert admitted(window) == [1]
    window.dispatched([key(1)])
    assert admitted(window) == [2, 3]


def test_a_later_attempt_passes_the_door() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 3)
    add(window, 2, attempt=1)
    assert admitted(window) == [1, 2]


def test_time_at_the_door_is_not_waiting_in_the_window() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 3)
    add(window, 2)
    window.remove(key(1))
    assert (admitted(window), window.longest_wait) == ([2], 0)


def test_the_backlog_counts_window_and_door() -> None:
    window = make_window()
    add(window, 1)
    cycles(window, 3)
    add(window, 2)
    assert window.backlog_tokens == 20
    window.remove(key(2))
    window.dispatched([key(1)])
    assert window.backlog_tokens == 0


@pytest.mark.parametrize("fields", [{"num_cycles": 0}, {"reject_factor": 0.5}, {"throttle": 1.0}])
def test_limits_outside_their_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(HeadwayError, match="must be"):
        FlowControl(**fields)  # type: ignore[arg-type]  # fields by name
