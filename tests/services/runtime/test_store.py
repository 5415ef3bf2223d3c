"""The state store on a real server: leases, fencing tokens, membership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headway.errors import Code, HeadwayError
from services.runtime.local_store import LocalStore
from services.runtime.membership import MembershipLease, MembershipWatch
from services.runtime.store import Member, Store


@pytest.fixture
async def store(store_url: str, cluster: str) -> AsyncIterator[Store]:
    found = await Store.connect(store_url, cluster)
    yield found
    await found.close()


async def test_one_candidate_leads_at_a_time(store: Store) -> None:
    assert await store.acquire_leader("one", "one:1", 5.0) == 1
    assert await store.acquire_leader("two", "two:1", 5.0) is None
    leader = await store.leader()
    assert leader is not None
    assert (leader.candidate_id, leader.address, leader.fencing_token) == ("one", "one:1", 1)


async def test_a_renewal_keeps_the_token_and_a_change_raises_it(store: Store) -> None:
    assert await store.acquire_leader("one", "one:1", 5.0) == 1
    assert await store.acquire_leader("one", "one:1", 5.0) == 1
    await store.release_leader("two")
    assert await store.acquire_leader("two", "two:1", 5.0) is None
    await store.release_leader("one")
    assert await store.leader() is None
    assert await store.acquire_leader("two", "two:1", 5.0) == 2


async def test_an_expired_lease_goes_to_the_next_candidate(store: Store) -> None:
    assert await store.acquire_leader("one", "one:1", 0.05) == 1
    async with asyncio.timeout(5):
        while (token := await store.acquire_leader("two", "two:1", 5.0)) is None:
            await asyncio.sleep(0.01)
    assert token == 2


async def test_many_candidates_never_share_a_token(store: Store) -> None:
    given: list[int] = []

    async def stand(name: str) -> None:
        for _ in range(10):
            token = await store.acquire_leader(name, f"{name}:1", 1.0)
            if token is not None:
                given.append(token)
                await store.release_leader(name)

    await asyncio.gather(*(stand(f"candidate-{n}") for n in range(8)))
    assert len(given) == len(set(given))
    assert given == sorted(given)


async def test_the_script_is_loaded_again_where_the_server_forgot_it(store: Store) -> None:
    await store.acquire_leader("one", "one:1", 5.0)
    await store._client.script_flush()
    assert await store.acquire_leader("one", "one:1", 5.0) == 1


async def test_members_come_and_go_with_their_leases(store: Store) -> None:
    member = Member("worker", "w1", "w1:1", role="decode", model="m", detail={"a": "b"})
    await store.join(member)
    assert await store.members("worker") == [member]
    await store.leave(member)
    assert await store.members("worker") == []
    await store.join(member, ttl=0.02)
    async with asyncio.timeout(5):
        while await store.members("worker"):
            await asyncio.sleep(0.01)


async def test_a_watch_sees_joins_moves_and_leaves(store: Store) -> None:
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    watch = MembershipWatch(
        store,
        "worker",
        lambda member: seen.put_nowait(("join", member.address)),
        lambda member: seen.put_nowait(("leave", member.address)),
    )
    watch.start()
    lease = MembershipLease(store, Member("worker", "w1", "old:1"))
    lease.start()
    async with asyncio.timeout(10):
        assert await seen.get() == ("join", "old:1")
        await lease.stop()
        assert await seen.get() == ("leave", "old:1")
        await store.join(Member("worker", "w1", "new:1"))
        assert await seen.get() == ("join", "new:1")
    await watch.stop()


async def test_targets_are_read_back(store: Store) -> None:
    assert await store.read_targets() is None
    await store.publish_targets({"num_prefill": 2})
    assert await store.read_targets() == {"num_prefill": 2}


async def test_a_store_that_is_gone_is_unavailable_not_a_crash(cluster: str) -> None:
    with LocalStore() as server:
        store = await Store.connect(server.url, cluster)
    with pytest.raises(HeadwayError) as refused:
        await store.leader()
    assert refused.value.code is Code.UNAVAILABLE
    await store.close()


async def test_connecting_gives_up_with_the_way_out(cluster: str) -> None:
    with pytest.raises(HeadwayError, match="--store"):
        await Store.connect("redis://127.0.0.1:1/0", cluster, patience=0.0)
    with pytest.raises(HeadwayError, match="redis://"):
        await Store.connect("http://nowhere", cluster)
