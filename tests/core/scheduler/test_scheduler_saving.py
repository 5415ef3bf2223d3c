"""An instance saves its blocks for who has waited T, and finds no room."""

from __future__ import annotations

import pytest

from headway.cluster import Role, UnitLoad
from headway.core.scheduler.events import WorkerReported
from headway.core.scheduler.prefill import SAVED_FROM_ALL, SAVING_PERIOD
from headway.messages import EndForward, UsedConstant
from headway.service_class import NO_STANDING, ServiceClass, Standing
from tests.fakes.scheduler_text import SchedulerHarness, make_info, short_pass

T = 5.0


def make(*worker_ids: str) -> SchedulerHarness:
    """Unified workers, each with 20 of 100 blocks free, and T of their order."""
    scheduler = SchedulerHarness(short_pass())
    for worker_id in worker_ids:
        scheduler.connect(make_info(worker_id, Role.UNIFIED))
        report(scheduler, worker_id)
    return scheduler


def submit(scheduler: SchedulerHarness, number: int, num_prompt: int, **fields: object) -> None:
    """A request comes now; nobody reads its first tokens."""
    chosen = {"reasons": True, "arrival_at": scheduler.now, **fields}
    scheduler.submit(number, num_prompt, **chosen)


def report(scheduler: SchedulerHarness, worker_id: str, free: int = 20) -> None:
    """A pass of the worker ends."""
    sent = tuple(each.dispatch_id for each in scheduler.dispatches(worker_id))
    load = UnitLoad(0, 0, 1, 800, free)
    constants = (UsedConstant("T", T, "measured"),)
    message = EndForward(1, 0.1, sent[-1:], (load,), constants=constants)
    scheduler.post(WorkerReported(worker_id, message), after=0.1)


def test_smaller_ones_pass_it_until_it_has_waited_t_and_then_only_readers_do() -> None:
    scheduler = make("u")
    submit(scheduler, 1, 500)
    submit(scheduler, 2, 50)
    assert scheduler.dispatched("u") == [2]
    scheduler.wait(T + 0.1)
    report(scheduler, "u")
    submit(scheduler, 3, 50)
    submit(scheduler, 4, 50, reasons=False)
    report(scheduler, "u")
    scheduler.wait(1.0)
    assert scheduler.dispatched("u") == [2, 4]
    report(scheduler, "u", free=90)
    assert scheduler.dispatched("u")[2:] == [1]


def test_after_some_t_readers_pass_it_no_more_and_it_goes_first() -> None:
    scheduler = make("u")
    submit(scheduler, 1, 500)
    scheduler.wait(SAVED_FROM_ALL * T + 0.1)
    report(scheduler, "u")
    submit(scheduler, 2, 50, reasons=False)
    report(scheduler, "u")
    assert scheduler.dispatched("u") == []
    report(scheduler, "u", free=90)
    report(scheduler, "u", free=40)
    assert scheduler.dispatched("u") == [1, 2]


def test_now_and_then_nothing_is_saved_so_that_no_other_starves() -> None:
    scheduler = make("u")
    submit(scheduler, 1, 500)
    scheduler.wait(T + 0.1)
    submit(scheduler, 2, 50)
    for _ in range(SAVING_PERIOD - 1):
        report(scheduler, "u")
        assert scheduler.dispatched("u") == []
        scheduler.wait(T)
    report(scheduler, "u")
    assert scheduler.dispatched("u") == [2]


def test_one_instance_of_the_pool_saves() -> None:
    scheduler = make("u", "v")
    submit(scheduler, 1, 500)
    scheduler.wait(T + 0.1)
    for number in (2, 3, 4):
        submit(scheduler, number, 50)
        report(scheduler, "u")
        report(scheduler, "v")
    scheduler.wait(1.0)
    counts = sorted(len(scheduler.dispatched(each)) for each in ("u", "v"))
    assert counts == [0, 3]


@pytest.mark.parametrize("yields", [True, False])
def test_nobody_saves_for_who_takes_what_is_left(yields: bool) -> None:
    scheduler = make("u")
    standing = Standing(service=ServiceClass("batch", yields=True)) if yields else NO_STANDING
    submit(scheduler, 1, 500, standing=standing)
    scheduler.wait(T + 0.1)
    submit(scheduler, 2, 50)
    report(scheduler, "u")
    scheduler.wait(1.0)
    assert (2 in scheduler.dispatched("u")) is yields
