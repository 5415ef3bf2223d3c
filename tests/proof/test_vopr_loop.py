"""The virtual loop: time jumps, and processes stand still, are slow and end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from proof.vopr.loop import ProcessLife, TimeStandsStill, VirtualLoop, VirtualThread


def live(work: Coroutine[Any, Any, Any], loop: VirtualLoop) -> Any:
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def ticks(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        seen.append(asyncio.get_running_loop().time())


def tell(life: ProcessLife, seen: list[float]) -> asyncio.Task[Any]:
    return life.loop.start(life, ticks(seen))


def test_an_hour_takes_no_time() -> None:
    loop = VirtualLoop()

    async def work() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert live(work(), loop) == 3600


def test_a_paused_process_does_what_it_missed_once_it_runs_again() -> None:
    loop, seen, other = VirtualLoop(), list[float](), list[float]()

    async def work() -> None:
        life, beside = ProcessLife(loop, "a"), ProcessLife(loop, "b")
        tasks = tell(life, seen), tell(beside, other)
        await asyncio.sleep(1.5)
        life.pause()
        await asyncio.sleep(3.0)
        life.resume()
        await asyncio.sleep(1.2)
        for task in tasks:
            task.cancel()
        assert [life.stood_still(since) for since in (0.0, 4.0, 4.5, 5.0)] == [3.0, 0.5, 0.0, 0.0]
        assert beside.stood_still(0.0) == 0.0

    live(work(), loop)
    assert (seen, other) == ([1.0, 4.5, 5.5], [1.0, 2.0, 3.0, 4.0, 5.0])


def test_no_line_of_a_process_that_has_ended_runs_any_more() -> None:
    loop, seen = VirtualLoop(), list[float]()

    async def work() -> list[float]:
        life = ProcessLife(loop, "a")
        task = tell(life, seen)
        await asyncio.sleep(1.5)
        life.end()
        task.cancel()
        await asyncio.sleep(5.0)
        found = [*seen]
        life.bury()
        await asyncio.wait([task])
        return found

    assert live(work(), loop) == [1.0]


def test_a_slow_process_takes_its_time_for_every_step() -> None:
    loop, seen = VirtualLoop(), list[float]()

    async def work() -> None:
        life = ProcessLife(loop, "a")
        life.drag = 0.25
        task = tell(life, seen)
        await asyncio.sleep(3.0)
        life.drag = 0.0
        task.cancel()
        await asyncio.sleep(1.0)

    live(work(), loop)
    assert seen == [1.75]  # its first step, its timer and its task each waited


def test_a_thread_does_one_thing_after_the_other_at_the_end_of_its_time() -> None:
    loop = VirtualLoop()

    async def work() -> list[float]:
        thread = VirtualThread(loop, lambda arguments: arguments[0])
        futures = [asyncio.wrap_future(thread.submit(lambda _: loop.time(), s)) for s in (2, 1)]
        return await asyncio.gather(*futures)

    assert live(work(), loop) == [2.0, 3.0]


def test_code_that_never_lets_time_pass_is_found() -> None:
    loop = VirtualLoop()

    async def work() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TimeStandsStill):
        loop.run_until_complete(work())


def test_an_error_that_nobody_awaits_is_told_to_the_process_whose_callback_raised_it() -> None:
    loop, told, others = VirtualLoop(), list[Any](), list[Any]()
    loop.set_exception_handler(lambda _, context: others.append(context["exception"]))

    async def fails() -> None:
        raise ValueError

    async def work() -> None:
        asyncio.get_running_loop().call_soon(int, "no number")
        await asyncio.sleep(1.0)
        asyncio.create_task(fails())  # noqa: RUF006 (as a careless shell has it)
        await asyncio.sleep(1.0)

    life = ProcessLife(loop, "a")
    life.handler = lambda context: told.append(context["exception"])
    live(asyncio.wait([loop.start(life, work())]), loop)
    assert (len(told), len(others)) == (1, 1)  # whose a forgotten task was is not known
