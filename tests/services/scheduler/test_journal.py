"""What a leader writes down: packed, fenced, and read again by the next one."""

from __future__ import annotations

import asyncio
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import UnitId
from headway.core.scheduler.events import Learned, Persist, SavedRequest
from headway.errors import Code, HeadwayError
from headway.request import StreamKey
from services.runtime.store import Store
from services.scheduler import records
from services.scheduler.journal import Journal
from tests.fakes.scheduler_rig import Rig, key, until

GAMMAS = st.just(0.0) | st.floats(1e-9, 1e9)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
TIMES = st.floats(0, 2**53)
SANE = Learned("m", 1, 0.1, 0.1, 1.0, 1.0)
SAVED = st.builds(
    SavedRequest,
    st.builds(StreamKey, NAMES, st.integers(0, 2**64 - 1)),
    NAMES,
    st.integers(-1, 2**40),
    TIMES,
    TIMES | st.just(-inf),
    st.none() | st.builds(UnitId, NAMES, st.integers(0, 2**16 - 1)),
    st.booleans(),
)
LEARNED = st.builds(Learned, NAMES, st.integers(0, 2**40), TIMES, TIMES, TIMES, GAMMAS)


def saved(stream_id: int, worker_id: str = "w") -> SavedRequest:
    return SavedRequest(key(stream_id), worker_id, 3, 1.0, 0.5, UnitId("d", 1), False)


async def read(store: Store) -> tuple[SavedRequest, ...]:
    return records.unpack_requests((await store.read_journal())[0])


async def until_read(store: Store, *expected: SavedRequest) -> None:
    async with asyncio.timeout(60):
        while await read(store) != expected:
            await asyncio.sleep(0.01)


# --- records --------------------------------------------------------------------------


@given(
    st.lists(SAVED, unique_by=lambda each: each.key), st.lists(LEARNED, unique_by=lambda e: e[0])
)
def test_what_is_packed_is_read_again(requests: list[SavedRequest], learned: list[Learned]) -> None:
    packed = {records.pack_key(each.key): records.pack_request(each) for each in requests}
    assert set(records.unpack_requests(packed)) == set(requests)
    measured = {each.model.encode(): records.pack_learned(each) for each in learned}
    assert records.unpack_learned(measured) == tuple(sorted(learned))


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=60)))
def test_what_cannot_be_read_is_left_out(packed: dict[bytes, bytes]) -> None:
    records.unpack_requests(packed)
    records.unpack_learned(packed)


@pytest.mark.parametrize("value", [nan, inf, -1.0, 1e300])
def test_records_out_of_range_are_left_out(value: float) -> None:
    blob = records.pack_request(saved(1)._replace(since=value))
    assert records.unpack_requests({records.pack_key(key(1)): blob}) == ()
    for name in ("mean_pass_time", "dispatch_latency", "velocity", "gamma"):
        learned = Learned(**{**SANE._asdict(), name: value})
        assert records.unpack_learned({b"m": records.pack_learned(learned)}) == ()


def test_records_of_another_version_are_left_out() -> None:
    name, blob = records.pack_key(key(1)), records.pack_request(saved(1))
    assert records.unpack_requests({name: bytes([blob[0] + 1]) + blob[1:]}) == ()


# --- writes ---------------------------------------------------------------------------


async def test_changes_of_one_turn_leave_in_one_write(store: Store) -> None:
    token = await store.acquire_leader("a", "a:1", 5.0)
    assert token is not None
    journal = Journal(store, token)
    for stream_id in range(100):
        journal.write(Persist((saved(stream_id),)))
    journal.write(Persist(ended=tuple(key(stream_id) for stream_id in range(2, 100))))
    await until_read(store, saved(0), saved(1))
    assert journal.num_writes == 1
    journal.write(Persist((saved(1, "x"),), (key(0),)))
    await until_read(store, saved(1, "x"))
    await journal.close()


async def test_a_leader_that_was_followed_by_another_writes_nothing_more(store: Store) -> None:
    old = await store.acquire_leader("a", "a:1", 5.0)
    assert old is not None
    await store.release_leader("a")
    new = await store.acquire_leader("b", "b:1", 5.0)
    assert new is not None
    older, newer = Journal(store, old), Journal(store, new)
    newer.write(Persist((saved(1),)))
    await until_read(store, saved(1))
    older.write(Persist((saved(2),), (key(1),)))
    await until(lambda: older.is_refused, "the store refuses it")
    assert await read(store) == (saved(1),)
    await older.close()
    await newer.close()


async def test_what_could_not_be_written_is_written_later_unless_it_has_changed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await store.acquire_leader("a", "a:1", 5.0)
    assert token is not None
    journal, works = Journal(store, token), store.write_journal

    async def fails(*_: object) -> bool:
        journal.write(Persist((saved(2, "newer"),)))
        monkeypatch.setattr(store, "write_journal", works)
        raise HeadwayError(Code.UNAVAILABLE, "the store does not answer")

    monkeypatch.setattr(store, "write_journal", fails)
    journal.write(Persist((saved(1), saved(2, "older"))))
    await until_read(store, saved(1), saved(2, "newer"))
    await journal.close()


# --- terms ----------------------------------------------------------------------------


async def test_a_successor_begins_with_what_the_last_leader_wrote(rig: Rig) -> None:
    leader = await rig.leader()
    standby = await rig.scheduler(election_grace=0.2)
    worker = await rig.worker("w")
    gateway = await rig.gateway(leader.address)
    await gateway.submit(1)
    await until(lambda: worker.dispatched == [1], "the worker has it")
    written = "headway_scheduler_journal_writes_total"
    await until(lambda: leader.metrics()[written] >= 1, "it is written down")
    async with asyncio.timeout(60):
        while [each.worker_id for each in await read(rig.store)] != ["w"]:
            await asyncio.sleep(0.01)
    worker.silent = True
    await leader.service.drain()
    await until(lambda: standby.service.leads, "the standby leads")
    again = await rig.gateway(standby.address)
    await again.submit(1)
    other = await rig.worker("x")
    await again.submit(2)
    await until(lambda: other.dispatched == [2], "the new one runs: the other may run elsewhere")
    assert worker.dispatched == [1]
