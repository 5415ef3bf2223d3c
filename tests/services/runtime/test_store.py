"""The state store on a real server: leases, fencing tokens, members, outages."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import Code, HeadwayError
from services.local.store import LocalStore
from services.runtime.store import Member, Store


async def lead(store: Store, candidate: str, ttl: float = 5.0) -> int | None:
    return await store.acquire_leader(candidate, f"{candidate}:1", ttl)


async def test_one_candidate_leads_at_a_time(store: Store) -> None:
    token = await lead(store, "one")
    assert await lead(store, "two") is None
    leader = await store.leader()
    assert leader is not None
    assert (leader.candidate_id, leader.address, leader.fencing_token) == ("one", "one:1", token)


async def test_a_renewal_keeps_the_token_and_a_change_raises_it(store: Store) -> None:
    first = await lead(store, "one")
    assert first is not None
    assert await lead(store, "one") == first
    await store.release_leader("two")
    assert await lead(store, "two") is None
    await store.release_leader("one")
    assert await store.leader() is None
    second = await lead(store, "two")
    assert second is not None
    assert second > first


async def test_an_expired_lease_goes_to_the_next_candidate(store: Store) -> None:
    first = await lead(store, "one", ttl=0.05)
    assert first is not None
    async with asyncio.timeout(60):
        while (token := await lead(store, "two")) is None:
            await asyncio.sleep(0.01)
    assert token > first


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("one", "two")),
            st.sampled_from(("acquire", "release", "expire", "forget scripts")),
        ),
        max_size=25,
    )
)
def test_whatever_two_candidates_do_no_token_is_given_twice(
    store_url: str, steps: list[tuple[str, str]]
) -> None:
    async def play() -> None:
        store = await Store.connect(store_url, f"test-{uuid4().hex}")
        holder: str | None = None
        token = newest = 0
        for candidate, step in steps:
            if step == "acquire":
                given_token = await lead(store, candidate)
                if holder not in (None, candidate):
                    assert given_token is None, "two leaders"
                elif holder == candidate:
                    assert given_token == token, "a renewal changed the token"
                else:
                    assert given_token is not None
                    assert newest < given_token < 2**53
                    holder, token, newest = candidate, given_token, given_token
            elif step == "release":
                await store.release_leader(candidate)
                holder = None if holder == candidate else holder
            elif step == "expire":
                await store._client.delete(store._key("leader"))
                holder = None
            else:
                await store._client.script_flush()
            found = await store.leader()
            assert (found.candidate_id if found else None) == holder
        await store.close()

    asyncio.run(play())


async def test_many_candidates_never_share_a_token(store: Store) -> None:
    given_tokens: list[int] = []

    async def stand(name: str) -> None:
        for _ in range(10):
            token = await lead(store, name, ttl=1.0)
            if token is not None:
                given_tokens.append(token)
                await store.release_leader(name)

    await asyncio.gather(*(stand(f"candidate-{n}") for n in range(8)))
    assert len(given_tokens) == len(set(given_tokens))
    assert given_tokens == sorted(given_tokens)


async def test_tokens_go_on_rising_where_the_store_has_lost_its_data(store: Store) -> None:
    before = await lead(store, "one")
    assert before is not None
    await store._client.delete(store._key("leader"), store._key("fencing"))
    async with asyncio.timeout(60):
        while 1e6 * await store.now() <= before:  # as a restart of the store takes
            await asyncio.sleep(0.02)
    after = await lead(store, "two")
    assert after is not None
    assert after > before


async def test_a_token_lies_above_what_the_candidate_has_seen(store: Store) -> None:
    """The store's clock may have gone back, too."""
    before = await lead(store, "one")
    assert before is not None
    await store._client.delete(store._key("leader"), store._key("fencing"))
    seen = before + 3_600_000_000
    after = await store.acquire_leader("two", "two:1", 5.0, seen=seen)
    assert after is not None
    assert after > seen


async def test_a_store_that_goes_back_to_an_old_lease_gives_its_holder_a_newer_token(
    store: Store,
) -> None:
    before = await lead(store, "one")
    assert before is not None
    newer = await store.acquire_leader("one", "one:1", 5.0, seen=before + 5)
    assert newer is not None
    assert newer > before + 5
    assert await store.acquire_leader("one", "one:1", 5.0, seen=newer) == newer


async def test_a_store_that_goes_back_gives_no_token_to_a_second_candidate(store: Store) -> None:
    """Nobody remembers the first one, and the clock, an hour back, does not tell them apart."""
    snapshot = int(1e6 * await store.now()) + 3_600_000_000
    given_tokens: list[int | None] = []
    for n in range(8):
        await store._client.set(store._key("fencing"), snapshot)
        given_tokens.append(await lead(store, f"scheduler-{n}"))
        await store._client.delete(store._key("leader"))
    assert None not in given_tokens
    assert len(set(given_tokens)) == 8


async def test_a_candidate_with_a_bar_in_its_name_is_refused(store: Store) -> None:
    with pytest.raises(HeadwayError, match=r"without a \|"):
        await lead(store, "a|b")


async def test_members_come_and_go_with_their_leases(store: Store) -> None:
    member = Member("worker", "w1", "w1:1", role="decode", model="m", detail={"a": "b"})
    await store.join(member)
    assert await store.members("worker") == [member]
    await store.leave(member)
    assert await store.members("worker") == []
    await store.join(member, ttl=0.02)
    async with asyncio.timeout(60):
        while await store.members("worker"):
            await asyncio.sleep(0.01)
    assert await store._client.smembers(store._key("members", "worker")) == set()


async def test_a_member_that_renews_while_it_is_pruned_stays(store: Store) -> None:
    member = Member("worker", "w1", "w1:1")
    await store.join(member)
    keys = [store._key("members", "worker"), store._key("member", "worker", "w1")]
    await store._prune(keys, ["w1"])
    assert await store.members("worker") == [member]


async def test_a_service_joins_in_one_step(store: Store) -> None:
    member = Member("worker", "w1", "w1:1")
    async with store._client.monitor() as monitor:
        await store.join(member)
        assert await store.join(member) == member
        await store.now()
        names: set[str] = set()
        while "TIME" not in names:
            command = await monitor.next_command()
            if command["client_type"] != "lua":
                names.add(command["command"].split()[0].upper())
    assert "EVALSHA" in names
    assert names.isdisjoint({"GETRANGE", "SET", "SADD"})


async def test_members_of_other_versions_and_nonsense_do_not_hide_the_others(store: Store) -> None:
    newer = {"service": "worker", "member_id": "w2", "address": "w2:1", "since_version": 9}
    for member_id, text in (("w1", "{"), ("w2", json.dumps(newer)), ("w3", '{"role": "decode"}')):
        await store._client.set(store._key("member", "worker", member_id), text)
        await store._client.sadd(store._key("members", "worker"), member_id)
    assert await store.members("worker") == [Member("worker", "w2", "w2:1")]


async def test_clusters_do_not_see_each_other(store: Store, store_url: str) -> None:
    other = await Store.connect(store_url, "test-other")
    await store.join(Member("worker", "w1", "w1:1"))
    assert await lead(store, "one") is not None
    assert await other.members("worker") == []
    assert await other.leader() is None
    await other.close()


async def test_targets_are_read_back(store: Store) -> None:
    assert await store.read_targets() is None
    await store.publish_targets({"num_prefill": 2})
    assert await store.read_targets() == {"num_prefill": 2}


async def test_a_store_that_is_gone_is_unavailable_and_its_return_is_noticed(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalStore() as server:
        store = await Store.connect(server.url, cluster)
        server.end()
        for _ in range(3):
            with pytest.raises(HeadwayError) as refused:
                await store.leader()
            assert refused.value.code is Code.UNAVAILABLE
        server.start()
        assert await store.leader() is None
        assert await lead(store, "one") is not None
        await store.close()
    said = capsys.readouterr().out
    assert (said.count("store_lost"), said.count("store_reached")) == (1, 1)


async def test_a_store_that_hangs_is_unavailable_before_leases_run_out(cluster: str) -> None:
    with LocalStore() as server:
        store = await Store.connect(server.url, cluster)
        server.process.send_signal(19)  # SIGSTOP
        async with asyncio.timeout(60):
            with pytest.raises(HeadwayError) as refused:
                await store.leader()
        assert refused.value.code is Code.UNAVAILABLE
        server.process.send_signal(18)  # SIGCONT
        assert await store.leader() is None
        await store.close()


@pytest.mark.parametrize(
    "option", ["x=y", "retry=5", "connection_class=x", "protocol=9", "ssl_cert_reqs=zz", "db=a"]
)
async def test_a_wrong_option_of_the_stores_url_is_refused_at_once(option: str) -> None:
    scheme = "rediss" if option.startswith("ssl") else "redis"
    with pytest.raises(HeadwayError, match="must be a redis:// URL") as refused:
        await Store.connect(f"{scheme}://:secret@127.0.0.1:1/0?{option}", "c", patience=0.0)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert "secret" not in refused.value.message


async def test_connecting_gives_up_with_the_way_out_and_keeps_the_password(cluster: str) -> None:
    with pytest.raises(HeadwayError, match="--store") as refused:
        await Store.connect("redis://:secret@127.0.0.1:1/0", cluster, patience=0.0)
    assert "secret" not in refused.value.message
    with pytest.raises(HeadwayError, match="redis://"):
        await Store.connect("http://nowhere", cluster)
