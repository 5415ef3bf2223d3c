"""Leases and watches on a real store, through outages of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from proof.vopr.loop import ProcessLife, VirtualLoop
from proof.vopr.store import MemoryClient, MemoryRedis
from proof.vopr.world import EPOCH
from services.local.store import LocalStore
from services.runtime.membership import ABSENCE_GRACE, MembershipLease, MembershipWatch
from services.runtime.store import Member, Store

PATIENCE = 60.0
Seen = asyncio.Queue[tuple[str, str]]


@asynccontextmanager
async def watching(url: str, cluster: str) -> AsyncIterator[tuple[Store, Seen]]:
    """A watch over workers, and what it sees."""
    store, seen = await Store.connect(url, cluster), Seen()
    watch = MembershipWatch(
        store,
        "worker",
        lambda member: seen.put_nowait(("join", member.address)),
        lambda member: seen.put_nowait(("leave", member.address)),
    )
    watch.start()
    async with asyncio.timeout(PATIENCE):
        yield store, seen
    await watch.stop()
    await store.close()


async def test_a_watch_sees_joins_and_leaves(store_url: str, cluster: str) -> None:
    async with watching(store_url, cluster) as (store, seen):
        lease = MembershipLease(store, Member("worker", "w1", "old:1"))
        lease.start()
        assert await seen.get() == ("join", "old:1")
        await lease.stop()
        assert await seen.get() == ("leave", "old:1")


async def test_a_member_that_moves_leaves_and_joins(store_url: str, cluster: str) -> None:
    async with watching(store_url, cluster) as (store, seen):
        await store.join(Member("worker", "w1", "old:1"))
        assert await seen.get() == ("join", "old:1")
        await store.join(Member("worker", "w1", "new:1"))
        assert [await seen.get(), await seen.get()] == [("leave", "old:1"), ("join", "new:1")]


async def test_two_processes_with_one_id_are_named(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await store.join(Member("worker", "w1", "before:1"))  # killed: its lease is still there
    first, second = (
        MembershipLease(store, Member("worker", "w1", address)) for address in ("a:1", "b:1")
    )
    said = ""
    first.start()
    async with asyncio.timeout(PATIENCE):
        while not await store.members("worker"):
            await asyncio.sleep(0.05)
        second.start()
        while "address=a:1" not in said or "address=b:1" not in said:
            await asyncio.sleep(0.05)
            said += capsys.readouterr().out
    assert "service_id_taken" in said
    assert "give one of them another --service-id" in said
    assert "before:1" not in said
    await first.stop()
    await second.stop()


async def test_a_store_that_comes_back_empty_takes_nobody_out(cluster: str) -> None:
    with LocalStore() as server:
        async with watching(server.url, cluster) as (store, seen):
            lease = MembershipLease(store, Member("worker", "w1", "w1:1"))
            lease.start()
            assert await seen.get() == ("join", "w1:1")
            server.end()
            server.start()
            while not await store.members("worker"):
                await asyncio.sleep(0.05)
            await store.join(Member("worker", "w2", "w2:1"))
            assert await seen.get() == ("join", "w2:1"), "w1 must not have left"
            await lease.stop()


async def test_a_listener_that_fails_does_not_end_the_watch(store: Store) -> None:
    seen = asyncio.Queue[str]()

    def on_join(member: Member) -> None:
        if member.member_id == "bad":
            raise ValueError(member.member_id)
        seen.put_nowait(member.member_id)

    watch = MembershipWatch(store, "worker", on_join, lambda member: None)
    watch.start()
    await store.join(Member("worker", "bad", "bad:1"))
    await store.join(Member("worker", "good", "good:1"))
    async with asyncio.timeout(PATIENCE):
        assert await seen.get() == "good"
    await watch.stop()


def test_an_outage_of_the_store_does_not_count_as_absence() -> None:
    """A member was missing before the outage: it may have joined again, unseen."""
    loop = VirtualLoop()
    server = MemoryRedis(loop, Random(0), EPOCH, lambda state: None)
    store, left = Store(MemoryClient(server).as_redis(), "c"), list[str]()
    watch = MembershipWatch(
        store, "worker", lambda member: None, lambda member: left.append(member.member_id)
    )

    async def work() -> None:
        await store.join(Member("worker", "w", "w:1"), ttl=60.0)
        watch.start()
        await asyncio.sleep(1.0)
        server.wipe()
        await asyncio.sleep(0.75 * ABSENCE_GRACE)
        server.is_away += 1
        await asyncio.sleep(2 * ABSENCE_GRACE)
        server.is_away -= 1
        await asyncio.sleep(0.5 * ABSENCE_GRACE)
        assert left == []
        await asyncio.sleep(ABSENCE_GRACE)
        assert left == ["w"]
        await watch.stop()

    loop.run_until_complete(loop.start(ProcessLife(loop, "all"), work()))
    loop.close()
