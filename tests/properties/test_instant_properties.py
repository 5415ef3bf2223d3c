"""Ages and remaining times are the same on every host, however wrong its clock is."""

from __future__ import annotations

from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st

from headway.instants import later
from headway.messages import CancelStream, Dispatch, KvHeader, UnitBatch
from headway.request import Request, SamplingParams, StreamKey
from services.runtime import wire

NOW = 1_800_000_000.0
ERRORS = st.floats(-1e6, 1e6)  # seconds by which a clock is wrong
AGES = st.floats(0.0, 3600.0)
LEFT = st.floats(-10.0, 3600.0) | st.just(inf)
EXACT = 2e-6
"""Seconds: a double holds seconds since the epoch to 0.3 µs."""


def request(age: float, left: float, *, by: float) -> Request:
    """One that arrived ``age`` seconds ago, by a clock that is wrong by so much."""
    sampling, now = SamplingParams(), NOW + by
    return Request("r", "m", (1,), sampling, now - age, 0, 1, "g", "g:1", deadline_at=now + left)


def has(read: Request, age: float, left: float, *, by: float) -> bool:
    now = NOW + by
    return isclose(now - read.arrival_at, age, abs_tol=EXACT) and (
        read.deadline_at == left == inf or isclose(read.deadline_at - now, left, abs_tol=EXACT)
    )


@given(age=AGES, left=LEFT, gateway=ERRORS, leader=ERRORS, worker=ERRORS, target=ERRORS)
def test_age_and_time_left_are_the_same_on_every_host(
    age: float, left: float, gateway: float, leader: float, worker: float, target: float
) -> None:
    asked = request(age, left, by=gateway)
    packed = wire.FROM_GATEWAY.pack_all([asked], now=NOW + gateway)
    (queued,) = wire.FROM_GATEWAY.unpack_all(packed, now=NOW + leader)
    assert isinstance(queued, Request)
    assert has(queued, age, left, by=leader)
    dispatch = wire.TO_WORKER.pack(Dispatch(1, (UnitBatch(0, (queued,)),)), now=NOW + leader)
    taken = wire.TO_WORKER.unpack(dispatch, now=NOW + worker)
    assert isinstance(taken, Dispatch)
    running = taken.batches[0].requests[0]
    assert has(running, age, left, by=worker)
    header = KvHeader(running, 0, 1, 4, 4, "float32", (1, 2, 4, 1, 1))
    arrived = wire.KV.unpack(wire.KV.pack(header, now=NOW + worker), now=NOW + target)
    assert isinstance(arrived, KvHeader)
    assert has(arrived.request, age, left, by=target)


@given(ages=st.lists(AGES, min_size=2, max_size=6), sender=ERRORS, receiver=ERRORS)
def test_who_came_first_stays_first(ages: list[float], sender: float, receiver: float) -> None:
    asked = [request(age, inf, by=sender) for age in ages]
    packed = wire.FROM_GATEWAY.pack_all(asked, now=NOW + sender)
    read = wire.FROM_GATEWAY.unpack_all(packed, now=NOW + receiver)
    for one, other, here, there in zip(asked, asked[1:], read, read[1:], strict=False):
        assert isinstance(here, Request)
        assert isinstance(there, Request)
        if one.arrival_at + EXACT < other.arrival_at:
            assert here.arrival_at < there.arrival_at


@given(age=AGES, left=LEFT, by=ERRORS)
def test_between_hosts_whose_clocks_agree_nothing_changes(
    age: float, left: float, by: float
) -> None:
    asked = request(age, left, by=by)
    packed = wire.FROM_GATEWAY.pack_all([asked], now=NOW + by)
    assert wire.FROM_GATEWAY.unpack_all(packed, now=NOW + by) == [asked]


@given(st.floats(-1e6, 1e6))
def test_messages_without_instants_stay_as_they_are(by: float) -> None:
    cancel = CancelStream(StreamKey("g", 1))
    assert later(cancel, by) is cancel
