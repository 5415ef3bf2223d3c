"""The curves and lives of a gateway outlive its process, in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from headway.console.recent import EndedRequest, RecentRequests
from headway.core.gateway.lives import Lives
from headway.errors import Code, HeadwayError
from headway.life.form import packed
from headway.life.moments import Moment, MomentKind
from headway.life.parts import parts_of
from headway.life.record import Crowd, Instants, LifeRecord, TokenTally
from protos import gateway_pb2, gateway_pb2_grpc
from services.gateway.past import MOST_LIVES, KeptPast
from services.runtime.clock import Clock
from services.runtime.store import Store
from tests.fakes.gateway_harness import cluster


def life_at(arrival_at: float) -> LifeRecord:
    """Return a life that is over at once."""
    texts = "r", "g", "m", arrival_at, "stop", "", "", ""
    counts = True, TokenTally(1), Crowd(), Instants(end=0)
    return LifeRecord(*texts, *counts, (Moment(0, MomentKind.SENT),), ())


def lasting(life: LifeRecord, request_id: str, length: int) -> LifeRecord:
    """Return a life of another request, so many microseconds long."""
    instants, parts = Instants(end=length), parts_of((), length)
    return replace(life, request_id=request_id, instants=instants, parts=parts)


async def test_the_next_process_of_a_gateway_has_the_curves_and_the_lives_of_the_last(
    tmp_path: Path, store_url: str
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}
    async with cluster(tmp_path, store_url) as first, first.http() as client:
        answer = await client.post("/v1/chat/completions", json=body)
        asked = f"/explain/{answer.headers['x-request-id']}"
        life = (await client.get(asked)).json()["life"]
        recent, now = first.service.console.feed.recent, first.service.now()
        second = int(now) - min(5, int(now) % 60)  # the minute before has had its last word
        row = [float(second), 2.0, 1.0, 4.0, 3, 2, 0.5, 0.5, None]
        recent.restore([row], ())
        ended = recent.last_minute(now)
    assert life["status"] == "length"
    async with cluster(tmp_path, store_url) as later, later.http() as client:
        recent = later.service.console.feed.recent
        assert recent.history[0] == row
        assert recent.last_minute(later.service.now()) == ended
        assert (await client.get(asked)).json()["life"] == life


async def test_of_a_minute_the_longest_lives_are_kept_and_all_that_the_figures_need(
    store: Store,
) -> None:
    clock, num = Clock(), MOST_LIVES + 5
    life = life_at(clock.now())
    writer = KeptPast(store, "g", RecentRequests(clock.now()), Lives(), clock, 60.0)
    await writer.start()
    for number in range(num):
        now = clock.now()
        ended = EndedRequest(
            now, now, "stop", "", "", 1, 1, 0, None, None, None, None, f"r{number}"
        )
        writer.ended(ended, lasting(life, f"r{number}", number + 1))
    await writer.stop()
    recent, lives = RecentRequests(clock.now()), Lives()
    await KeptPast(store, "g", recent, lives, clock, 60.0).start()
    assert len(recent.last_minutes(clock.now())) == num
    assert lives.find("r4", clock.now()) is None
    assert lives.find("r5", clock.now()) is not None


DAMAGED: Mapping[str, Mapping[str, Any]] = {
    "an id that is none": {"request_id": []},
    "an instant in words": {"end_us": "soon"},
    "an arrival that never was": {"arrival_at": float("nan")},
    "a moment at no time": {"moments": [{**packed(life_at(0.0))["moments"][0], "at_us": 1e999}]},
    "more than fits a float": {"end_us": 10**400},
    "a tenant that is no name": {"tenant": {}},
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
async def test_a_life_that_is_damaged_in_the_store_keeps_no_gateway_from_starting(
    store: Store, damage: Mapping[str, Any]
) -> None:
    clock = Clock()
    now = clock.now()
    whole = packed(life_at(now))
    ended = EndedRequest(now, now, "stop", "", "", 1, 1, 0, None, None, None, None, "r")
    for place, life in enumerate((whole, {**whole, **damage})):
        text = json.dumps({"rows": [], "ended": [ended], "lives": [life]})
        await store.save_past("g", place, text, 60.0)
    recent, lives = RecentRequests(now), Lives()
    past = KeptPast(store, "g", recent, lives, clock, 60.0)
    await past.start()
    await past.stop()
    assert store.num_unreadable == 1
    assert recent.last_minutes(now) == [ended]
    found = lives.find("r", now)
    assert found is not None
    assert packed(found)["moments"] == whole["moments"]


async def test_figures_that_are_no_numbers_are_not_taken_from_the_store(store: Store) -> None:
    clock = Clock()
    now = clock.now()
    ended = EndedRequest(now, now, "stop", "", "", 1, 1, 0, float("nan"), None, None, None)
    await store.save_past("g", 0, json.dumps({"rows": [], "ended": [ended], "lives": []}), 60.0)
    recent = RecentRequests(now)
    past = KeptPast(store, "g", recent, Lives(), clock, 60.0)
    await past.start()
    await past.stop()
    assert recent.last_minutes(now) == []


async def test_what_a_stop_cuts_is_part_of_the_past(tmp_path: Path, store_url: str) -> None:
    chat: Any = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2000}
    prompt = gateway_pb2.TokenIds(ids=[97, 98])
    asked = gateway_pb2.GenerateRequest(model="tiny", token_ids=prompt)
    asked.sampling.max_tokens, asked.sampling.ignore_eos = 2000, True
    async with AsyncExitStack() as stack:
        async with cluster(tmp_path, store_url, delay=0.02) as first:
            client = await stack.enter_async_context(first.http())
            body = {"model": "tiny", "stream": True, "ignore_eos": True, **chat}
            stream = client.stream("POST", "/v1/chat/completions", json=body)
            await anext((await stack.enter_async_context(stream)).aiter_lines())
            channel = grpc.aio.insecure_channel(first.grpc_address)
            await stack.enter_async_context(channel)
            call = gateway_pb2_grpc.GatewayStub(channel).Generate(asked)
            await call.read()
        assert first.service.num_open == 0
    async with cluster(tmp_path, store_url) as second:
        ended = second.service.console.feed.recent.last_minutes(second.service.now())
        assert [each.end for each in ended] == ["cancelled", "cancelled"]


class SteppedClock:
    at = 600_000.0

    def now(self) -> float:
        return self.at


class SlowStore:
    """A store for which a minute passes with every write: requests end meanwhile."""

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self.past: KeptPast | None = None
        self.num_writes = 0

    async def read_past(self, gateway_id: str, num_places: int) -> dict[str, str]:
        return {}

    async def save_past(self, gateway_id: str, place: int, text: str, ttl: float) -> None:
        self.num_writes += 1
        self._clock.at += 60.0
        assert self.past is not None
        self.past.ended(at(self._clock.at), None)


class LateStore(SlowStore):
    """A store that answers the second time, and holds one minute."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__(clock)
        self.num_reads = 0
        self.text = json.dumps({"rows": [], "ended": [at(clock.at)], "lives": []})

    async def read_past(self, gateway_id: str, num_places: int) -> dict[str, str]:
        self.num_reads += 1
        if self.num_reads == 1:
            raise HeadwayError(Code.UNAVAILABLE, "the store does not answer")
        return {"past": self.text}

    async def save_past(self, gateway_id: str, place: int, text: str, ttl: float) -> None:
        self.text = text


def at(now: float) -> EndedRequest:
    return EndedRequest(now, now, "stop", "", "", 1, 1, 0, None, None, None, None)


async def test_a_minute_that_is_dropped_while_others_are_written_ends_nothing() -> None:
    clock = SteppedClock()
    store = SlowStore(clock)
    recent = RecentRequests(clock.now())
    past = KeptPast(cast(Store, store), "g", recent, Lives(), cast(Clock, clock), 60.0)
    store.past = past
    await past.start()
    for _ in range(10):
        past.ended(at(clock.at), None)
        clock.at += 60.0
    clock.at -= 60.0
    await past.stop()
    assert 0 < store.num_writes <= 10


async def test_what_could_not_be_read_at_the_start_is_not_written_over() -> None:
    clock = SteppedClock()
    store = LateStore(clock)
    recent = RecentRequests(clock.now())
    past = KeptPast(cast(Store, store), "g", recent, Lives(), cast(Clock, clock), 60.0)
    await past.start()
    clock.at += 1.0
    past.ended(at(clock.at), None)
    await past.stop()
    kept = [ended[0] for ended in json.loads(store.text)["ended"]]
    assert sorted(kept) == [clock.at - 1.0, clock.at]
    assert [each.ended_at for each in recent.last_minutes(clock.at)] == [clock.at - 1.0]
