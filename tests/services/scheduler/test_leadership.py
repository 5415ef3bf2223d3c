"""The leader's lease on a real store: a hiccup ends no term, an outage does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import IO

import pytest
import redis.asyncio as redis

from services.local.store import LocalStore
from services.runtime.clock import Clock
from services.runtime.store import Store
from services.scheduler.leadership import Leadership

TTL = 4.0


@pytest.fixture
def own_store() -> Iterator[str]:
    """One that may be stopped without others noticing."""
    with LocalStore() as store:
        yield store.url


@pytest.fixture
def full_disk() -> Iterator[IO[bytes]]:
    with open("/dev/full", "wb") as file:
        yield file


class Terms:
    """What a scheduler was told: its fencing tokens, and how often it was deposed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.num_deposed = 0

    async def elected(self, token: int) -> None:
        self.tokens.append(token)

    async def deposed(self) -> None:
        self.num_deposed += 1


@asynccontextmanager
async def standing(
    url: str, cluster: str, name: str, ttl: float = TTL
) -> AsyncIterator[tuple[Leadership, Terms]]:
    store, terms = await Store.connect(url, cluster), Terms()
    leadership = Leadership(
        store, name, "s:1", ttl, Clock(), elected=terms.elected, deposed=terms.deposed
    )
    leadership.start()
    try:
        yield leadership, terms
    finally:
        await leadership.stop()
        await store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)


async def pause(url: str, seconds: float) -> None:
    """The store answers nobody for so long."""
    async with redis.from_url(url) as client:
        await client.client_pause(int(1000 * seconds), all=True)


async def test_a_hiccup_of_the_store_ends_no_term(own_store: str, cluster: str) -> None:
    async with standing(own_store, cluster, "one") as (leadership, terms):
        await until(lambda: leadership.leads)
        held_until = leadership._held_until
        await until(lambda: leadership._held_until > held_until)  # it has just been renewed
        held_until = leadership._held_until
        await pause(own_store, TTL * 0.7)  # two renewals do not come through
        await until(lambda: leadership._held_until > held_until)
        assert leadership.leads
        assert (len(terms.tokens), terms.num_deposed) == (1, 0)


async def test_an_outage_ends_the_term_before_another_can_begin(
    own_store: str, cluster: str
) -> None:
    async with standing(own_store, cluster, "one") as (leadership, terms):
        await until(lambda: leadership.leads)
        await pause(own_store, TTL * 1.5)
        await until(lambda: terms.num_deposed == 1)
        await until(lambda: leadership.leads)
        assert len(terms.tokens) == 2
        assert terms.tokens[1] > terms.tokens[0]


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


async def test_a_leader_whose_store_loses_its_data_leads_on(own_store: str, cluster: str) -> None:
    async with (
        redis.from_url(own_store) as client,
        standing(own_store, cluster, "one", 1.0) as (leadership, terms),
    ):
        for _ in range(3):
            await until(lambda: leadership.leads)
            held_until = leadership._held_until
            await until(lambda since=held_until: leadership._held_until > since)  # type: ignore[misc]
            assert leadership.leads
            assert terms.num_deposed == len(terms.tokens) - 1
            await client.flushall()
        assert terms.tokens == sorted(set(terms.tokens))


async def test_a_leader_that_resigns_lets_another_lead(own_store: str, cluster: str) -> None:
    async with (
        standing(own_store, cluster, "one") as (one, _),
        standing(own_store, cluster, "two") as (two, _),
    ):
        await until(lambda: one.leads or two.leads)
        first, second = (one, two) if one.leads else (two, one)
        began_at = asyncio.get_running_loop().time()
        first.resign("all workers refuse it")
        await until(lambda: second.leads)
        assert not first.leads
        assert asyncio.get_running_loop().time() - began_at < TTL  # the lease was released


async def test_one_of_two_leads_and_the_other_follows_it(own_store: str, cluster: str) -> None:
    async with (
        standing(own_store, cluster, "one") as (one, _),
        standing(own_store, cluster, "two") as (two, terms),
    ):
        await until(lambda: one.leads or two.leads)
        assert not (one.leads and two.leads)
        first, second = (one, two) if one.leads else (two, one)
        await first.stop()
        await until(lambda: second.leads)
        assert terms.num_deposed <= 1


async def test_a_follower_that_wins_after_a_loss_of_data_has_a_newer_token(
    own_store: str, cluster: str
) -> None:
    async with (
        standing(own_store, cluster, "one") as (one, _),
        standing(own_store, cluster, "two") as (two, _),
    ):
        await until(lambda: one._seen > 0 and two._seen > 0)
        tokens = [min(one._seen, two._seen)]
        async with redis.from_url(own_store) as client:
            for _ in range(3):
                await client.flushall()
                await until(lambda: min(one._seen, two._seen) > tokens[-1])  # both know it
                tokens.append(min(one._seen, two._seen))
    assert tokens == sorted(set(tokens))
