"""The leader's lease: a hiccup of the store ends no term, an outage does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random
from typing import IO

import pytest

from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.store import MemoryClient, MemoryRedis
from proof.vopr.world import EPOCH, VirtualClock
from services.local.store import LocalStore
from services.runtime.store import Store
from services.scheduler.leadership import Leadership

TTL = 2.0


class Election:
    """Candidates on hosts whose clocks differ, on virtual time, and who of them leads, by name.

    Where the store ``forgets``, two may lead for a moment: their tokens differ.
    """

    def __init__(self, seed: int = 0, *, forgets: bool = False) -> None:
        self.loop = VirtualLoop()
        self._forgets = forgets
        self.rng = Random(seed)
        self.server = MemoryRedis(self.loop, self.rng, EPOCH, lambda state: None)
        self.store = Store(MemoryClient(self.server).as_redis(), "c")
        self.leads: dict[str, int] = {}
        self.tokens: list[int] = []
        self.num_deposed = 0
        self.deposed_at = 0.0
        self.candidates: list[Leadership] = []

    def stand(self, name: str) -> Leadership:
        async def elected(token: int) -> None:
            assert self._forgets or not self.leads, f"{name} is elected while {self.leads} leads"
            self.leads[name] = token
            self.tokens.append(token)

        async def deposed() -> None:
            del self.leads[name]
            self.num_deposed += 1
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

    async def pause(self, seconds: float) -> None:
        """The store answers nobody for so long."""
        self.server.is_away += 1
        await asyncio.sleep(seconds)
        self.server.is_away -= 1

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await work()
            for candidate in self.candidates:
                await candidate.stop()

        self.loop.run_until_complete(self.loop.start(ProcessLife(self.loop, "all"), whole()))
        self.loop.close()


def on_virtual_time(test: Callable[[Election], Awaitable[None]]) -> Callable[[], None]:
    """Have a test run with an election of its own."""

    def lived() -> None:
        election = Election()
        election.run(partial(test, election))

    return lived


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)


async def renewed(leadership: Leadership) -> None:
    """Until its lease has just been renewed."""
    held_until = leadership._held_until
    await until(lambda: leadership._held_until > held_until)


@on_virtual_time
async def test_a_hiccup_of_the_store_ends_no_term(election: Election) -> None:
    leader = election.stand("one")
    await until(lambda: leader.leads)
    await renewed(leader)
    await election.pause(TTL * 0.5)  # a renewal does not come through
    await renewed(leader)
    assert leader.leads
    assert (len(election.tokens), election.num_deposed) == (1, 0)


@on_virtual_time
async def test_an_outage_ends_the_term_before_another_can_begin(election: Election) -> None:
    leader = election.stand("one")
    await until(lambda: leader.leads)
    await election.pause(TTL * 1.5)
    assert election.num_deposed == 1
    await until(lambda: leader.leads)
    assert election.tokens == sorted(set(election.tokens))
    assert len(election.tokens) == 2


@on_virtual_time
async def test_a_leader_that_cannot_renew_steps_down_a_margin_before_its_lease_ends(
    election: Election,
) -> None:
    leader = election.stand("one")
    await asyncio.sleep(10.0)
    assert leader.leads
    election.server.is_away += 1
    await asyncio.sleep(2 * TTL)
    assert not leader.leads
    left = leader._held_until - leader._clock.now()
    early = election.loop.time() + left - election.deposed_at
    assert 0.04 * TTL < early < 0.5 * TTL  # it looks twenty times in a lease


@on_virtual_time
async def test_a_leader_whose_store_loses_its_data_leads_on(election: Election) -> None:
    leader = election.stand("one")
    for _ in range(3):
        await until(lambda: leader.leads)
        await renewed(leader)
        assert leader.leads
        assert election.num_deposed == len(election.tokens) - 1
        election.server.wipe()
    assert election.tokens == sorted(set(election.tokens))


@on_virtual_time
async def test_a_leader_that_resigns_lets_another_lead(election: Election) -> None:
    one, two = election.stand("one"), election.stand("two")
    await until(lambda: one.leads or two.leads)
    first, second = (one, two) if one.leads else (two, one)
    began_at = election.loop.time()
    first.resign("all workers refuse it")
    await until(lambda: second.leads)
    assert not first.leads
    assert election.loop.time() - began_at < TTL  # the lease was released


@on_virtual_time
async def test_one_of_two_leads_and_the_other_follows_it(election: Election) -> None:
    one, two = election.stand("one"), election.stand("two")
    await until(lambda: one.leads or two.leads)
    first, second = (one, two) if one.leads else (two, one)
    await first.stop()
    await until(lambda: second.leads)
    assert election.num_deposed == 1


def test_a_follower_that_wins_after_a_loss_of_data_has_a_newer_token() -> None:
    election = Election(forgets=True)
    seen: list[int] = []

    async def work() -> None:
        one, two = election.stand("one"), election.stand("two")
        await until(lambda: one._seen > 0 and two._seen > 0)
        seen.append(min(one._seen, two._seen))
        for _ in range(3):
            election.server.wipe()
            await until(lambda: min(one._seen, two._seen) > seen[-1])  # both know it
            seen.append(min(one._seen, two._seen))

    election.run(work)
    assert seen == sorted(set(seen))


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
                await election.pause(rng.uniform(0.1, 5))
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


@pytest.fixture
def own_store() -> Iterator[str]:
    """One that may be stopped without others noticing."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
def full_disk() -> Iterator[IO[bytes]]:
    with open("/dev/full", "wb") as file:
        yield file


async def test_a_scheduler_whose_disk_is_full_takes_over(
    own_store: str, cluster: str, full_disk: IO[bytes]
) -> None:
    command = (sys.executable, "-m", "services.scheduler", "--store", own_store)
    flags = ("--cluster", cluster, "--listen", "127.0.0.1:0", "--leader-ttl", "0.5")
    process = await asyncio.create_subprocess_exec(*command, *flags, stdout=full_disk)
    store = await Store.connect(own_store, cluster)
    try:
        async with asyncio.timeout(40):
            while (first := await store.leader()) is None:
                await asyncio.sleep(0.02)
            await store.release_leader(first.candidate_id)  # its term ends, which it logs
            while (second := await store.leader()) is None or second == first:
                await asyncio.sleep(0.02)
            last = second.fencing_token
            await asyncio.sleep(1.0)  # two leases: it renews
            found = await store.leader()
        assert found is not None
        assert found.fencing_token == last
    finally:
        process.terminate()
        assert await process.wait() == 0
        await store.close()
