"""Services on hosts whose clocks differ by minutes: deadlines, handoffs, moves, takeovers."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from functools import partial

import pytest

from headway.core.scheduler.events import Persist, SavedRequest
from headway.messages import Rejected
from headway.request import Request
from proof.vopr.cluster import ShellCluster
from proof.vopr.scenario import Asking, WorkerShape
from services.scheduler.journal import Journal
from services.scheduler.records import unpack_requests
from tests.fakes.scheduler_rig import PlainGateway, Rig, key, make_request, until
from tests.fakes.supervised import metric, serves, supervise
from tests.fakes.supervised import until as until_virtually

MINUTES = 300.0


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
def test_requests_with_deadlines_are_handed_off_and_move_whatever_the_clocks_say(
    error: float,
) -> None:
    """They have to end in less than the clocks differ; the gateway's is right."""

    async def test(cluster: ShellCluster) -> None:
        await until_virtually(partial(serves, cluster))
        for number in range(6):
            asking = Asking(f"r{number}", cluster.world.loop.time(), max_tokens=200)
            cluster.submit(asking)
        running = partial(metric, cluster, "headway_gateway_running_requests", "g0")
        await until_virtually(lambda: running() == 6)
        going = next(p for p in cluster.supervisor.processes if p.spec.service_id == "w2")
        cluster.order(cluster.supervisor.remove(going))
        await until_virtually(lambda: not cluster.world.checker.open_ids)
        assert cluster.world.checker.summary.ends == {"FINISH_REASON_LENGTH": 6}
        assert metric(cluster, "headway_scheduler_moves_total") > 0
        for question in ("dispatch", "placement"):
            waited = f'headway_scheduler_wait_seconds_sum{{question="{question}"}}'
            assert 0 <= metric(cluster, waited) < MINUTES

    skews = (0.0, error, -error, error, -error)  # of gateway, scheduler and workers
    shape = WorkerShape(num_blocks=400)
    supervise(test, "prefill", "decode", "decode", skews=skews, shape=shape)


def timed(stream_id: int) -> Request:
    """A request that arrived now, by a clock that is right, with half as long as clocks differ."""
    now = time.time()
    return replace(make_request(stream_id), arrival_at=now, deadline_at=now + MINUTES / 2)


async def waits(gateway: PlainGateway, request_id: str) -> list[float]:
    """Seconds that a request had waited at each decision, as the leader explains them."""
    decisions = [json.loads(line) for line in await gateway.explain(request_id)]
    return [one[3] for each in decisions for one in each["chosen"] if one[0] == request_id]


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
async def test_a_request_past_its_deadline_is_refused_by_a_leader_with_a_wrong_clock(
    rig: Rig, error: float
) -> None:
    leader = await rig.leader(clock_error=error)
    await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    now = time.time()
    await gateway.write(replace(timed(1), arrival_at=now - 60.0, deadline_at=now - 1.0))
    await until(lambda: bool(gateway.of(Rejected)), "it is refused")
    assert (
        "late" in gateway.of(Rejected)[0].message or "deadline" in gateway.of(Rejected)[0].message
    )


async def test_what_a_leader_saves_is_by_the_stores_clock(rig: Rig) -> None:
    token = await rig.store.acquire_leader("a", "a:1", 60.0)
    assert token is not None
    journal = Journal(rig.store, token)
    journal.ahead = -MINUTES  # this leader's clock is ahead of the store's
    saved = SavedRequest(key(1), "w", 3, 1000.0, 1000.0 - MINUTES, None, False)
    journal.write(Persist((saved,)))
    async with asyncio.timeout(60.0):
        while not (found := (await rig.store.read_journal())[0]):
            await asyncio.sleep(0.01)
    (read,) = unpack_requests(found)
    assert (read.since, read.moved_at) == (1000.0 - MINUTES, 1000.0 - 2 * MINUTES)
    await journal.close()


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
async def test_a_request_keeps_its_age_when_a_leader_with_another_clock_takes_over(
    rig: Rig, error: float
) -> None:
    token = await rig.store.acquire_leader("a", "a:1", 60.0)
    assert token is not None
    journal, age = Journal(rig.store, token), 30.0
    journal.ahead = error
    since = await rig.store.now() - age - error  # by the clock of the leader that writes it
    journal.write(Persist((SavedRequest(key(1), "", 0, since, since, None, False),)))
    async with asyncio.timeout(60.0):
        while not (await rig.store.read_journal())[0]:
            await asyncio.sleep(0.01)
    await journal.close()
    await rig.store.release_leader("a")
    _, worker, gateway = await rig.trio(clock_error=error)
    await gateway.write(timed(1))
    await until(lambda: worker.dispatched == [1], "the next leader dispatches it")
    (wait,) = await waits(gateway, "r1")
    assert age <= wait < MINUTES
