"""Elections on virtual time: to the millisecond, and hours of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.store import MemoryClient, MemoryRedis
from proof.vopr.world import EPOCH, VirtualClock
from services.runtime.store import Store
from services.scheduler.leadership import Leadership

TTL = 2.0


class Election:
    """Candidates on hosts whose clocks differ, and who of them leads, by name."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.rng = Random(seed)
        self.server = MemoryRedis(self.loop, self.rng, EPOCH, lambda state: None)
        self.store = Store(MemoryClient(self.server).as_redis(), "c")
        self.leads: dict[str, int] = {}
        self.tokens: list[int] = []
        self.deposed_at = 0.0
        self.candidates: list[Leadership] = []

    def stand(self, name: str) -> Leadership:
        async def elected(token: int) -> None:
            assert not self.leads, f"{name} is elected while {self.leads} leads"
            self.leads[name] = token
            self.tokens.append(token)

        async def deposed() -> None:
            del self.leads[name]
            self.deposed_at = self.loop.time()

        candidate = Leadership(
            self.store,
            name,
            f"{name}:1",
            TTL,
            VirtualClock(self.loop, self.rng.uniform(-300, 300)),
            elected=elected,
            deposed=deposed,
            draw=self.rng.randbytes,
        )
        candidate.start()
        self.candidates.append(candidate)
        return candidate

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await work()
            for candidate in self.candidates:
                await candidate.stop()

        self.loop.run_until_complete(self.loop.start(ProcessLife(self.loop, "all"), whole()))
        self.loop.close()


def test_a_leader_that_cannot_renew_steps_down_a_margin_before_its_lease_ends() -> None:
    election = Election()

    async def work() -> None:
        leader = election.stand("one")
        await asyncio.sleep(10.0)
        assert leader.leads
        election.server.is_away += 1
        await asyncio.sleep(2 * TTL)
        assert not leader.leads
        left = leader._held_until - leader._clock.now()
        early = election.loop.time() + left - election.deposed_at
        assert 0.04 * TTL < early < 0.5 * TTL  # it looks twenty times in a lease

    election.run(work)


@pytest.mark.parametrize("seed", range(5))
def test_no_two_of_three_lead_in_ten_minutes_of_outages_and_resignations(seed: int) -> None:
    election = Election(seed)
    rng, server = election.rng, election.server

    async def work() -> None:
        for name in "abc":
            election.stand(name)
        while election.loop.time() < 600:
            await asyncio.sleep(rng.uniform(1, 8))
            chance = rng.random()
            if chance < 0.3:
                server.is_away += 1
                await asyncio.sleep(rng.uniform(0.1, 5))
                server.is_away -= 1
            elif chance < 0.4:
                server.extra_delay = rng.choice((0.0, 0.3, 1.5))
            elif chance < 0.6:
                rng.choice(election.candidates).resign("it is told to")
        server.extra_delay = 0.0
        await asyncio.sleep(4 * TTL)
        assert len(election.leads) == 1

    election.run(work)
    assert len(election.tokens) > 10
    assert election.tokens == sorted(set(election.tokens))
