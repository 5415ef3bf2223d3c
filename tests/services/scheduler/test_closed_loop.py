"""When a live scheduler dispatches, and what it tells those for whom there is no room to wait."""

from __future__ import annotations

import asyncio

from headway.cluster import UnitLoad
from headway.errors import Code
from headway.messages import EndForward, Rejected
from tests.fakes.scheduler_rig import CHUNK, EmulatedWorker, PlainGateway, Rig, until

NO_WATCHDOG = "dispatch.watchdog_floor=600"
CROWDED = (UnitLoad(0, 0, 1, 1500, 1),)  # a free block, but none to spare
EMPTY = (UnitLoad(0, 0, 0, 0, 100),)


async def one_under_way(rig: Rig, settings: str = "") -> EmulatedWorker:
    """A pass computes request 1; request 2 waits for its end."""
    leader, worker, gateway = await rig.trio(set=settings)
    await gateway.submit(1, num_tokens=CHUNK)
    await until(lambda: worker.dispatched == [1], "the worker has the first")
    await gateway.submit(2)
    waiting = 'headway_scheduler_waiting_requests{model="m"}'
    await until(lambda: leader.metrics().get(waiting) == 1, "the second waits")
    return worker


async def test_the_end_of_a_pass_lets_the_next_dispatch_go(rig: Rig) -> None:
    worker = await one_under_way(rig, NO_WATCHDOG)
    assert worker.dispatched == [1]
    worker.end_pass()
    await until(lambda: worker.dispatched == [1, 2], "the second follows")


async def test_a_worker_that_reports_nothing_to_do_is_ready_whatever_pass_ended(rig: Rig) -> None:
    worker = await one_under_way(rig, NO_WATCHDOG)
    worker.report(EndForward(1, 0.0, (), EMPTY))
    await until(lambda: worker.dispatched == [1, 2], "the second follows")


async def test_the_watchdog_frees_an_instance_whose_end_of_pass_never_comes(rig: Rig) -> None:
    leader, worker, gateway = await rig.trio(set="dispatch.watchdog_floor=0.3")
    await gateway.submit(1, num_tokens=CHUNK)
    await until(lambda: worker.dispatched == [1], "the worker has the first")
    await gateway.submit(2)
    await until(lambda: worker.dispatched == [1, 2], "the second follows without an EndForward")
    seen = leader.metrics()
    assert seen['headway_scheduler_events_total{event="watchdog_expired"}'] >= 1
    assert seen['headway_scheduler_dispatches_total{rule="fixed-interval"}'] >= 1


async def refused(gateway: PlainGateway, worker: EmulatedWorker) -> Rejected:
    """Requests come, and passes end that leave no room for them, until one is refused."""
    async with asyncio.timeout(60.0):
        stream_id = 2
        while not gateway.of(Rejected):
            worker.report(EndForward(stream_id, 0.001, (), CROWDED))
            await gateway.submit(stream_id)
            stream_id += 1
            await asyncio.sleep(0.01)
    return gateway.of(Rejected)[0]


async def test_who_comes_when_others_have_waited_too_long_is_told_when_to_come_again(
    rig: Rig,
) -> None:
    leader = await rig.leader(
        set=f"dispatch.default_pass_time=0.001,{NO_WATCHDOG}", flow_control_cycles=2
    )
    worker = await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    await gateway.submit(1, num_tokens=CHUNK)
    await until(lambda: worker.dispatched == [1], "the worker has the first")
    rejected = await refused(gateway, worker)
    assert rejected.code is Code.RESOURCE_EXHAUSTED
    assert "waited more than 4 dispatch cycles" in rejected.message
    assert 1.0 <= rejected.retry_after <= 60.0
    waiting = range(2, rejected.key.stream_id)
    async with asyncio.timeout(60.0):
        while not set(waiting) <= set(worker.dispatched):  # those who were let in are served
            worker.end_pass()
            await asyncio.sleep(0.01)


async def test_who_comes_when_as_many_wait_as_may_is_told_when_to_come_again(rig: Rig) -> None:
    _, worker, gateway = await rig.trio(set=NO_WATCHDOG, max_waiting=1)
    await gateway.submit(1, num_tokens=CHUNK)
    await until(lambda: worker.dispatched == [1], "the worker has the first")
    await gateway.submit(2)
    await gateway.submit(3)
    await until(lambda: len(gateway.of(Rejected)) == 1, "the third is refused")
    rejected = gateway.of(Rejected)[0]
    assert (rejected.key.stream_id, rejected.code) == (3, Code.RESOURCE_EXHAUSTED)
    assert "1 requests are waiting, the limit is 1" in rejected.message
    assert 1.0 <= rejected.retry_after <= 60.0
