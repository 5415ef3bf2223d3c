"""The leader's stream to one worker: cut off, and opened again."""

from __future__ import annotations

import time
from dataclasses import replace

from headway.cluster import UnitLoad
from headway.core.scheduler.events import WorkerGone, WorkerReported
from headway.core.scheduler.order_turns import MOST_UNTAKEN
from headway.messages import (
    Accepted,
    CancelStream,
    ControlHello,
    Dispatch,
    HeldRequest,
    Snapshot,
    Tuned,
    UnitBatch,
)
from services.runtime.config import ServiceConfig
from services.scheduler.worker_link import WorkerLink
from tests.fakes.scheduler_rig import Rig, key, make_request, until
from tests.fakes.worker_service import Leader, served


async def test_a_worker_that_does_not_read_is_cut_off_and_dialled_again(rig: Rig) -> None:
    worker = await rig.worker("w")
    told: list[WorkerReported | WorkerGone] = []
    hello = ControlHello("s", 1)
    link = WorkerLink(
        ServiceConfig(), "w", worker.address, hello, told.append, time.time, max_queued=3
    )
    try:
        await until(lambda: len(told) == 1, "it greets")
        for stream_id in range(5):  # nothing is sent meanwhile
            link.send(CancelStream(key(stream_id)))
        await until(lambda: len(told) == 3, "it greets again")
    finally:
        await link.close()
    assert isinstance(told[0], WorkerReported)
    assert isinstance(told[1], WorkerGone)
    assert "3 messages are unread" in told[1].reason
    assert isinstance(told[2], WorkerReported)
    assert worker.orders == []


async def test_dispatches_wait_until_the_worker_has_taken_earlier_ones_or_is_dialled_again(
    rig: Rig,
) -> None:
    worker = await rig.worker("w")
    worker.accepts = False
    told: list[WorkerReported | WorkerGone] = []
    hello, config = ControlHello("s", 1), ServiceConfig()
    link = WorkerLink(config, "w", worker.address, hello, told.append, time.time, max_queued=99)
    dispatches = [Dispatch(n, (UnitBatch(0, (make_request(n),)),)) for n in range(MOST_UNTAKEN + 4)]
    try:
        await until(lambda: len(told) == 1, "it greets")
        for dispatch in dispatches:
            link.send(dispatch)
        await until(lambda: len(worker.orders) >= MOST_UNTAKEN, "so many are sent")
        worker.report(Accepted(0))
        await until(lambda: len(worker.orders) > MOST_UNTAKEN, "one more is sent")
        link.send(Tuned(0.5))
        await until(lambda: len(worker.orders) > MOST_UNTAKEN + 1, "this one does not wait")
        assert worker.dispatched == [*range(MOST_UNTAKEN + 1)]
        worker.orders.clear()
        worker.hang_up()
        await until(lambda: len(told) == 4, "it greets again")
        link.send(dispatches[-1])
        await until(lambda: bool(worker.orders), "the former orders are of no account")
        assert worker.dispatched == [MOST_UNTAKEN + 3]
    finally:
        await link.close()
    assert isinstance(told[2], WorkerGone)


async def test_a_worker_that_has_seen_a_newer_leader_is_reported_as_refusing(
    store_url: str, cluster: str
) -> None:
    refusals: list[tuple[str, bool]] = []
    async with served(store_url, cluster, "w", engine="fake") as (stub, runtime):
        await Leader(stub, 7).greet()
        link = WorkerLink(
            ServiceConfig(),
            "w",
            runtime.address,
            ControlHello("s", 6),
            lambda event: None,
            time.time,
            max_queued=3,
            refused=lambda *said: refusals.append(said),
        )
        try:
            await until(lambda: ("w", True) in refusals, "it is refused")
        finally:
            await link.close()


async def test_a_second_stream_of_the_same_leader_ends_the_first_one_and_is_no_takeover(
    store_url: str, cluster: str
) -> None:
    told: list[WorkerReported | WorkerGone] = []
    async with served(store_url, cluster, "w", engine="fake") as (stub, runtime):
        hello = ControlHello("s", 7)
        link = WorkerLink(
            ServiceConfig(), "w", runtime.address, hello, told.append, time.time, max_queued=3
        )
        try:
            await until(lambda: len(told) == 1, "it greets")
            await Leader(stub, 7).greet()
            await until(lambda: len(told) >= 3, "its orders may be lost, so it greets again")
        finally:
            await link.close()
    assert isinstance(told[1], WorkerGone)
    assert "a newer stream" in told[1].reason
    assert isinstance(told[2], WorkerReported)


async def test_a_request_on_a_unit_that_its_worker_lacks_ends_the_stream_by_name(rig: Rig) -> None:
    worker = await rig.worker("w")
    worker.held = (HeldRequest(key(1), "r1", 5, 5, False),)
    told: list[WorkerReported | WorkerGone] = []
    hello, config = ControlHello("s", 1), ServiceConfig()
    link = WorkerLink(config, "w", worker.address, hello, told.append, time.time, max_queued=3)
    try:
        await until(lambda: bool(told), "the link says why")
    finally:
        await link.close()
    assert isinstance(told[0], WorkerGone)
    assert "unit is 5; it must be below the worker's 1 DP units" in told[0].reason


async def test_a_worker_that_changes_its_model_ends_its_stream(rig: Rig) -> None:
    worker = await rig.worker("w")
    told: list[WorkerReported | WorkerGone] = []
    hello, config = ControlHello("s", 1), ServiceConfig()
    link = WorkerLink(config, "w", worker.address, hello, told.append, time.time, max_queued=3)
    try:
        await until(lambda: len(told) == 1, "it greets")
        loads = (UnitLoad(0, 0, 0, 0, 90),)
        worker.report(Snapshot(replace(worker.info, model="n"), loads))
        await until(lambda: len(told) == 2, "the link says why")
    finally:
        await link.close()
    assert isinstance(told[1], WorkerGone)
    assert "model is 'n'; it must be 'm', as in the stream's first snapshot" in told[1].reason
