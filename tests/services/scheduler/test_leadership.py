"""The leader's lease on a real store: a hiccup ends no term, an outage does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

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
async def standing(url: str, cluster: str, name: str) -> AsyncIterator[tuple[Leadership, Terms]]:
    store, terms = await Store.connect(url, cluster), Terms()
    leadership = Leadership(
        store, name, "s:1", TTL, Clock(), elected=terms.elected, deposed=terms.deposed
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
