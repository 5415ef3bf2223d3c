"""The driver: events in order, one timer, never re-entered, never early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
import uvloop

from services.runtime.clock import Clock
from services.runtime.driver import Driver


class Echo:
    """Answers every event with two actions; ``later`` and ``sooner`` set the alarm."""

    def __init__(self) -> None:
        self.next_wakeup: float | None = None
        self.inside = False
        self.num_wakes = 0

    def handle(self, event: str, *, now: float) -> Sequence[str]:
        assert not self.inside
        self.inside = True
        try:
            if event == "bad":
                raise ValueError(event)
            if event.startswith("wake in "):
                self.next_wakeup = now + float(event.removeprefix("wake in "))
            return (f"{event}-1", f"{event}-2")
        finally:
            self.inside = False

    def wake(self, *, now: float) -> Sequence[str]:
        assert not self.inside
        assert self.next_wakeup is not None
        assert now >= self.next_wakeup, "woken early"
        self.num_wakes += 1
        self.next_wakeup = None
        return ("woken",)


def make_driver(perform: Callable[[str], None], core: Echo | None = None) -> Driver[str, str]:
    return Driver(core or Echo(), perform, Clock())


async def test_actions_are_performed_before_post_returns() -> None:
    done: list[str] = []
    driver = make_driver(done.append)
    driver.post("a")
    assert done == ["a-1", "a-2"]


@pytest.mark.parametrize(
    ("event", "posts_at", "served"),
    [
        ("a", "a-1", ["a-1", "a-2", "b-1", "b-2"]),
        ("wake in 0", "woken", ["wake in 0-1", "wake in 0-2", "woken", "b-1", "b-2"]),
    ],
)
async def test_an_event_posted_from_an_action_or_a_wakeup_waits_for_the_others(
    event: str, posts_at: str, served: list[str]
) -> None:
    done: asyncio.Queue[str] = asyncio.Queue()

    def perform(action: str) -> None:
        done.put_nowait(action)
        if action == posts_at:
            driver.post("b")

    driver = make_driver(perform)
    driver.post(event)
    async with asyncio.timeout(60):
        assert [await done.get() for _ in served] == served


def test_the_core_is_never_woken_early_though_uvloop_rounds_to_milliseconds() -> None:
    async def wake_often() -> int:
        core, woken = Echo(), asyncio.Event()
        driver = make_driver(lambda action: woken.set() if action == "woken" else None, core)
        for delay in (0.0, 0.0001, 0.0004, 0.0006, 0.0014, 0.0016, 0.0031) * 5:
            woken.clear()
            driver.post(f"wake in {delay}")
            async with asyncio.timeout(60):
                await woken.wait()
        return core.num_wakes

    assert uvloop.run(wake_often()) == 35


@pytest.mark.parametrize(("first", "second"), [("0.02", "0.0"), ("0.0", "0.02"), ("60", "0.0")])
async def test_the_alarm_follows_the_core_sooner_and_later(first: str, second: str) -> None:
    core, woken = Echo(), asyncio.Event()
    driver = make_driver(lambda action: woken.set() if action == "woken" else None, core)
    driver.post(f"wake in {first}")
    driver.post(f"wake in {second}")
    async with asyncio.timeout(60):
        await woken.wait()
    assert core.num_wakes == 1


async def test_an_error_reaches_the_poster_and_the_core_goes_on() -> None:
    done: list[str] = []
    woken = asyncio.Event()

    def perform(action: str) -> None:
        done.append(action)
        if action == "woken":
            woken.set()
        if action == "a-1":
            driver.post("bad")
            driver.post("b")

    driver = make_driver(perform)
    driver.post("wake in 0.001")
    with pytest.raises(ValueError, match="bad"):
        driver.post("a")
    async with asyncio.timeout(60):
        await woken.wait()
    assert done[2:6] == ["a-1", "a-2", "b-1", "b-2"]


async def test_an_action_that_fails_leaves_the_others() -> None:
    done: list[str] = []

    def perform(action: str) -> None:
        if action == "a-1":
            raise ValueError(action)
        done.append(action)

    driver = make_driver(perform)
    with pytest.raises(ValueError, match="a-1"):
        driver.post("a")
    assert done == ["a-2"]


async def test_a_closed_driver_says_nothing() -> None:
    done: list[str] = []
    driver = make_driver(done.append)
    driver.close()
    driver.post("a")
    assert done == []
