"""Garbage in the store: logged, counted, refused by its reader; nobody ends because of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import redis.asyncio as redis
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.console.recent import RecentRequests
from headway.core.gateway.lives import Lives
from headway.core.scheduler.core import SchedulerCore
from headway.core.scheduler.events import Elected, Persist
from headway.core.scheduler.settings import SchedulerSettings
from headway.errors import Code, HeadwayError
from services.gateway.past import KeptPast
from services.runtime.clock import Clock
from services.runtime.store import MAX_FENCING_TOKEN, MOST_MEMBERS, Member, Store
from services.scheduler import records

KEYS = ("leader", "fencing", "requests", "learned", "targets", "members:worker", "past:g:0")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
BYTES = st.one_of(
    st.binary(max_size=80),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        (b"x", b"|||", b"1|a", b"9" * 30 + b"|a|b:1", b"18446744073709551615", b"[" * 100_000)
    ),
)


@pytest.fixture
async def raw(store_url: str, cluster: str) -> AsyncIterator[redis.Redis]:
    async with redis.from_url(store_url) as client:
        yield client


async def read_everything(store: Store) -> None:
    await store.leader()
    await store.members("worker")
    requests, learned = await store.read_journal()
    core = SchedulerCore(SchedulerSettings(persists=True))
    saved = records.unpack_requests(requests)
    core.handle(Elected(1, (), saved, records.unpack_learned(learned)), now=1.0)
    for action in core.wake(now=1e6):
        if isinstance(action, Persist):
            for each in action.saved:
                records.pack_request(each)
            for model in action.learned:
                records.pack_learned(model)
    await store.read_targets()
    past = KeptPast(store, "g", RecentRequests(1.0), Lives(), Clock(), 60.0)
    await past.start()
    await past.stop()
    await store.acquire_leader("one", "one:1", 5.0)
    await store.write_journal(1, {b"k": b"v"}, [b"r"], {b"m": b"l"})


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(KEYS), value=BYTES, field=BYTES, kind=st.sampled_from("shl"))
def test_every_reader_survives_any_value(
    store_url: str, key: str, value: bytes, field: bytes, kind: str
) -> None:
    async def play() -> None:
        cluster = f"test-{uuid4().hex}"
        store = await Store.connect(store_url, cluster)
        async with redis.from_url(store_url) as client:
            name = f"headway:{cluster}:{key}"
            match kind:
                case "s":
                    await client.set(name, value)
                case "h":
                    await client.hset(name, field, value)
                case _:
                    await client.rpush(name, value)
            await client.sadd(f"headway:{cluster}:members:worker", "w") if key[0] != "m" else None
            await client.set(f"headway:{cluster}:member:worker:w", value)
            try:
                await read_everything(store)
            except HeadwayError:
                assert key == "members:worker", "what others write is no outage"
            await client.delete(name)
        await read_everything(store)
        await store.close()

    asyncio.run(play())


@given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=60), max_size=3))
def test_records_of_any_bytes_are_read_or_skipped(packed: dict[bytes, bytes]) -> None:
    for saved in records.unpack_requests(packed):
        records.pack_request(saved)
    for learned in records.unpack_learned(packed):
        records.pack_learned(learned)


@pytest.mark.parametrize("lease", ["x", "1|", "7||a:1", f"{2**53}|a|b:1", "7|a|\udcff", "7|a|b\n"])
async def test_an_unreadable_lease_is_no_lease(
    store: Store, raw: redis.Redis, cluster: str, lease: str
) -> None:
    await raw.set(f"headway:{cluster}:leader", lease.encode("utf-8", "surrogateescape"))
    assert await store.leader() is None
    assert store.num_unreadable == 1


async def test_the_candidate_that_leads_goes_on_under_garbage(
    store: Store, raw: redis.Redis, cluster: str
) -> None:
    first = await store.acquire_leader("one", "one:1", 5.0)
    assert first is not None
    await raw.set(f"headway:{cluster}:leader", "x")
    second = await store.acquire_leader("one", "one:1", 5.0)
    assert second is not None
    assert first < second <= MAX_FENCING_TOKEN
    assert await store.acquire_leader("two", "two:1", 5.0) is None


@pytest.mark.parametrize("token", ["abc", "1e300", "18446744073709551615", "-5", ""])
async def test_an_unreadable_fencing_token_is_none(
    store: Store, raw: redis.Redis, cluster: str, token: str
) -> None:
    await raw.set(f"headway:{cluster}:fencing", token)
    first = await store.acquire_leader("one", "one:1", 5.0)
    assert first is not None
    assert 0 < first < MAX_FENCING_TOKEN
    assert await store.write_journal(first, {b"k": b"v"}, [], {})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"service": "worker", "member_id": "v", "address": "a:1"},
        {"service": "worker", "member_id": "w", "address": ["a:1"]},
        {"service": "worker", "member_id": "w", "address": "\ud800"},
        {"service": "worker", "member_id": "w", "address": "a:1", "role": 5},
        {"service": "worker", "member_id": "w", "address": "a:1", "detail": {"pid": 7}},
        {"service": "worker", "member_id": "w", "address": "a:1", "detail": "none"},
        {"service": "worker", "member_id": "w"},
    ],
)
async def test_an_unreadable_member_is_left_out_until_it_is_repaired(
    store: Store, raw: redis.Redis, cluster: str, said: dict[str, object]
) -> None:
    good = Member("worker", "w", "a:1")
    await store.join(good)
    await store.join(Member("worker", "other", "b:1"))
    await raw.set(f"headway:{cluster}:member:worker:w", json.dumps(said))
    assert [member.member_id for member in await store.members("worker")] == ["other"]
    assert store.num_unreadable == 1
    await store.join(good)
    assert good in await store.members("worker")


async def read_bytes(raw: redis.Redis) -> int:
    return int((await raw.info("stats"))["total_net_output_bytes"])


@pytest.mark.parametrize("key", ["leader", "fencing", "member:worker:w", "targets", "past:g:0"])
async def test_of_a_huge_value_no_reader_reads_more_than_such_a_value_may_have(
    store: Store, raw: redis.Redis, cluster: str, key: str
) -> None:
    await store.join(Member("worker", "w", "a:1"))
    await raw.set(f"headway:{cluster}:{key}", b'{"service":"' + b"x" * 100_000_000)
    before = await read_bytes(raw)
    await read_everything(store)
    await store.join(Member("worker", "w", "a:1"))
    assert await read_bytes(raw) - before < 10_000_000
    assert [each.member_id for each in await store.members("worker")] == ["w"]


@pytest.mark.parametrize("key", ["requests", "learned"])
async def test_a_huge_journal_counts_as_none(
    store: Store, raw: redis.Redis, cluster: str, key: str
) -> None:
    for name in "abc":
        await raw.hset(f"headway:{cluster}:{key}", name, b"x" * 100_000_000)
    before = await read_bytes(raw)
    assert await store.read_journal() == ({}, {})
    assert await read_bytes(raw) - before < 1_000_000
    assert store.num_unreadable == 1


async def test_a_roster_without_end_is_refused_and_mends_itself_of_who_is_gone(
    store: Store, raw: redis.Redis, cluster: str
) -> None:
    worker = Member("worker", "w", "a:1")
    await store.join(worker)
    gone = [f"gone-{number}" for number in range(MOST_MEMBERS + 500)]
    await raw.sadd(f"headway:{cluster}:members:worker", *gone)
    with pytest.raises(HeadwayError, match="more than 4096 members: delete it") as refused:
        await store.members("worker")
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    assert store.num_unreadable == 1
    assert await store.members("worker") == [worker]


async def test_a_huge_name_in_a_roster_is_read_in_part_and_taken_out(
    store: Store, raw: redis.Redis, cluster: str
) -> None:
    worker = Member("worker", "w", "a:1")
    await store.join(worker)
    await raw.sadd(f"headway:{cluster}:members:worker", b"x" * 4_000_000, "v" * 256)
    before = await read_bytes(raw)
    assert await store.members("worker") == [worker]
    assert await read_bytes(raw) - before < 10_000
    assert store.num_unreadable == 1
    assert await raw.smembers(f"headway:{cluster}:members:worker") == {b"w"}


async def test_a_membership_takes_the_place_of_a_value_of_another_type(
    store: Store, raw: redis.Redis, cluster: str
) -> None:
    await raw.rpush(f"headway:{cluster}:member:worker:w", "x")
    await store.join(Member("worker", "w", "a:1"))
    assert await store.members("worker") == [Member("worker", "w", "a:1")]
