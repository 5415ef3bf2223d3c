"""STAR on live services: two workers with a real model, a scheduler and the wire between them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.fakes.live_rig import LEASE, join, live_worker, long_request, token_sink
from tests.fakes.scheduler_rig import Rig, until

NUM_TOKENS = 600
EAGER = "rescheduling.interval=0.1,rescheduling.rest=60,rescheduling.step_tokens=64"


@pytest.mark.timeout(900)
async def test_a_running_request_moves_to_a_worker_that_joins_later(rig: Rig) -> None:
    leader = await rig.leader(policy="rescheduling=star", set=EAGER, leader_ttl=LEASE)
    gateway = await rig.gateway(leader.address)
    async with AsyncExitStack() as stack:
        sink, address = await stack.enter_async_context(token_sink(rig))
        await stack.enter_async_context(live_worker(rig, "a"))
        late = await stack.enter_async_context(live_worker(rig, "b", joins=False))
        for stream_id in (1, 2, 3):
            await gateway.write(long_request(stream_id, address, NUM_TOKENS))
        await until(lambda: all(sink.indices[n] for n in (1, 2, 3)), "all three run")
        await join(rig, late)
        await until(lambda: any(to == "b" for _, to in gateway.placed), "one is told to move")
        moved = next(stream_id for stream_id, to in gateway.placed if to == "b")
        async with asyncio.timeout(300):
            while len(sink.indices[moved]) < NUM_TOKENS:
                await asyncio.sleep(0.05)
    assert list(sink.senders[moved])[:2] == ["a", "b"]
    assert sorted(sink.indices[moved]) == list(range(NUM_TOKENS))  # each once, none missing
