"""The driver: events in order, one timer, never re-entered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.runtime.clock import Clock
from services.runtime.driver import Driver


class Echo:
    """Answers every event with actions; wakes when told."""

    def __init__(self) -> None:
        self.next_wakeup: float | None = None
        self.inside = False

    def handle(self, event: str, *, now: float) -> Sequence[str]:
        assert not self.inside
        self.inside = True
        if event == "later":
            self.next_wakeup = now + 0.01
        self.inside = False
        return (f"{event}-1", f"{event}-2")

    def wake(self, *, now: float) -> Sequence[str]:
        assert self.next_wakeup is not None
        assert now >= self.next_wakeup
        self.next_wakeup = None
        return ("woken",)


async def test_actions_are_performed_before_post_returns() -> None:
    done: list[str] = []
    driver: Driver[str, str] = Driver(Echo(), done.append, Clock())
    driver.post("a")
    assert done == ["a-1", "a-2"]


async def test_an_event_posted_from_an_action_waits_for_the_others() -> None:
    done: list[str] = []

    def perform(action: str) -> None:
        done.append(action)
        if action == "a-1":
            driver.post("b")

    driver: Driver[str, str] = Driver(Echo(), perform, Clock())
    driver.post("a")
    assert done == ["a-1", "a-2", "b-1", "b-2"]


async def test_the_core_is_woken_once_it_is_time() -> None:
    woken = asyncio.Event()
    driver: Driver[str, str] = Driver(
        Echo(), lambda action: woken.set() if action == "woken" else None, Clock()
    )
    driver.post("later")
    async with asyncio.timeout(5):
        await woken.wait()


async def test_a_closed_driver_says_nothing() -> None:
    done: list[str] = []
    driver: Driver[str, str] = Driver(Echo(), done.append, Clock())
    driver.close()
    driver.post("a")
    assert done == []
