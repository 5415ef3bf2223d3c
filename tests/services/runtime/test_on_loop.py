"""Figures that scrapes ask for from threads are read on the event loop whose they are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.runtime import on_loop as module
from services.runtime.on_loop import on_loop
from services.scheduler.metrics import SchedulerMetrics
from services.worker.metrics import WorkerMetrics
from tests.fakes.worker_core import CoreTotals


def of_scheduler(registry: CollectorRegistry, seen: list[int]) -> None:
    SchedulerMetrics(lambda: seen.append(threading.get_ident()), registry)


def of_worker(registry: CollectorRegistry, seen: list[int]) -> None:
    class Core(CoreTotals):
        def __getattribute__(self, name: str) -> Any:
            if name == "num_requests":
                seen.append(threading.get_ident())
            return super().__getattribute__(name)

    WorkerMetrics(registry, Core(), "m", 64, 16)


@pytest.mark.parametrize("made", [of_scheduler, of_worker])
async def test_a_scrape_in_a_thread_reads_a_core_on_its_loop(
    made: Callable[[CollectorRegistry, list[int]], None],
) -> None:
    registry, seen = CollectorRegistry(), list[int]()
    made(registry, seen)
    await asyncio.to_thread(lambda: list(registry.collect()))
    assert set(seen) == {threading.get_ident()}


async def test_scrapes_at_one_time_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FRESH", 1e9)
    seen: list[int] = []
    ask = on_loop(lambda: seen.append(1), None)
    await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(20)))
    assert seen == [1]
    ask()
    assert seen == [1, 1], "who is on the loop reads what is so now"


async def test_what_goes_wrong_there_is_told_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(on_loop(lambda: 1 // 0, 0))


async def test_a_loop_that_is_busy_for_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    asked = threading.Event()
    said: list[int] = []

    def scrape() -> None:
        said.append(ask())
        asked.set()

    ask = on_loop(lambda: 1, 0)
    threading.Thread(target=scrape, daemon=True).start()
    assert asked.wait(60)
    assert said == [0]


def test_a_loop_that_has_ended_is_not_waited_for() -> None:
    async def made() -> Callable[[], int]:
        return on_loop(lambda: 1, 0)

    assert asyncio.run(made())() == 0
    assert on_loop(lambda: 1, 0)() == 1
