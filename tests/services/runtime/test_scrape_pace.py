"""Answers of a metrics port: at a pace for an address that asks on and on, at once for others."""

from __future__ import annotations

import pytest

from services.runtime.scrape_pace import ScrapePace


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_answered_at_once_and_what_comes_behind_it_at_a_pace(clock: Clock) -> None:
    pace = ScrapePace(clock)
    assert [pace.wait("a") for _ in range(100)] == [0.0] * 100
    waits = [pace.wait("a") for _ in range(40)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(40 / 20)
    assert pace.wait("b") == 0.0, "another address does not wait"
    clock.now += 1000.0
    assert pace.wait("a") == 0.0


def test_who_asks_now_and_then_is_no_flood(clock: Clock) -> None:
    pace = ScrapePace(clock)
    for _ in range(1000):
        assert pace.wait("a") == 0.0
        assert not pace.is_flood("a")
        clock.now += 1.0
    for _ in range(200):
        pace.wait("a")
    assert pace.is_flood("a")
    assert not pace.is_flood("b")


def test_an_address_leaves_places_to_others() -> None:
    pace = ScrapePace()
    assert [pace.take("a") for _ in range(129)] == [True] * 128 + [False]
    assert pace.take("b")
    pace.give_back("a")
    assert pace.take("a")
    taken = sum(pace.take(f"{n}") for n in range(1000))
    assert taken == 512 - 129


def test_addresses_without_end_are_forgotten(clock: Clock) -> None:
    pace = ScrapePace(clock)
    for n in range(10_000):
        clock.now += 0.01
        pace.wait(f"{n}")
    assert len(pace._free_at) <= 4096
