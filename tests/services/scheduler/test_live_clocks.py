"""Services on hosts whose clocks differ by minutes: deadlines, handoffs, moves, takeovers."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from headway.core.scheduler.events import Persist, SavedRequest
from headway.messages import Placed, Rejected
from headway.request import Request
from services.scheduler.journal import Journal
from services.scheduler.records import unpack_requests
from tests.fakes.live_rig import LEASE, Sink, join, live_worker, long_request, token_sink
from tests.fakes.scheduler_rig import PlainGateway, Rig, key, until

MINUTES = 300.0
NUM_TOKENS = 200
STREAMS = (1, 2, 3)
PATIENCE = 300.0
EAGER = "rescheduling.interval=0.1,rescheduling.rest=60,rescheduling.step_tokens=64"

pytestmark = pytest.mark.timeout(900)


def timed(stream_id: int, address: str, num_tokens: int = NUM_TOKENS) -> Request:
    """One that arrived now, by the gateway's clock, and has to end in less than the clocks differ.

    The gateway's clock is right.
    """
    now = time.time()
    request = long_request(stream_id, address, num_tokens)
    return replace(request, arrival_at=now, deadline_at=now + MINUTES / 2)


async def all_served(sink: Sink, num_tokens: int = NUM_TOKENS) -> None:
    async with asyncio.timeout(PATIENCE):
        while any(len(sink.tokens[n]) < num_tokens for n in STREAMS):
            await asyncio.sleep(0.02)
    for stream_id in STREAMS:
        assert sorted(sink.indices[stream_id]) == list(range(num_tokens))


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
async def test_requests_with_deadlines_are_handed_off_whatever_the_clocks_say(
    rig: Rig, error: float
) -> None:
    leader = await rig.leader(clock_error=error, leader_ttl=LEASE)
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        sink, address = await stack.enter_async_context(token_sink(rig))
        await stack.enter_async_context(live_worker(rig, "p", "prefill", clock_error=-error))
        await stack.enter_async_context(live_worker(rig, "d", "decode", clock_error=error))
        for stream_id in STREAMS:
            await gateway.write(timed(stream_id, address))
        await all_served(sink)
    assert gateway.of(Rejected) == []
    assert all(list(sink.senders[number]) == ["p", "d"] for number in STREAMS)
    waited = [wait for number in STREAMS for wait in await waits(gateway, f"r{number}")]
    assert waited
    assert all(0.0 <= wait < MINUTES for wait in waited)


async def waits(gateway: PlainGateway, request_id: str) -> list[float]:
    """Seconds that a request had waited at each decision, as the leader explains them."""
    decisions = [json.loads(line) for line in await gateway.explain(request_id)]
    return [one[3] for each in decisions for one in each["chosen"] if one[0] == request_id]


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
async def test_a_running_request_moves_between_hosts_whose_clocks_differ(
    rig: Rig, error: float
) -> None:
    leader = await rig.leader(
        policy="rescheduling=star", set=EAGER, clock_error=-error, leader_ttl=LEASE
    )
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        sink, address = await stack.enter_async_context(token_sink(rig))
        await stack.enter_async_context(live_worker(rig, "a", clock_error=error))
        late = await stack.enter_async_context(
            live_worker(rig, "b", joins=False, clock_error=-error)
        )
        for stream_id in STREAMS:
            await gateway.write(timed(stream_id, address, 600))
        await until(lambda: all(sink.indices[n] for n in STREAMS), "all three run")
        await join(rig, late)
        await until(lambda: any(p.worker_id == "b" for p in gateway.of(Placed)), "one moves")
        await all_served(sink, 600)
    assert any(list(sink.senders[number]) == ["a", "b"] for number in STREAMS)


@pytest.mark.parametrize("error", [MINUTES, -MINUTES])
async def test_a_request_past_its_deadline_is_refused_by_a_leader_with_a_wrong_clock(
    rig: Rig, error: float
) -> None:
    leader = await rig.leader(clock_error=error, leader_ttl=LEASE)
    await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    now = time.time()
    await gateway.write(replace(timed(1, "g:1"), arrival_at=now - 60.0, deadline_at=now - 1.0))
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
    async with asyncio.timeout(PATIENCE):
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
    async with asyncio.timeout(PATIENCE):
        while not (await rig.store.read_journal())[0]:
            await asyncio.sleep(0.01)
    await journal.close()
    await rig.store.release_leader("a")
    _, worker, gateway = await rig.trio(clock_error=error, leader_ttl=LEASE)
    await gateway.write(replace(timed(1, "g:1"), model="m"))
    await until(lambda: worker.dispatched == [1], "the next leader dispatches it")
    (wait,) = await waits(gateway, "r1")
    assert age <= wait < MINUTES
