"""The closed loop and the hashing proxy against endpoints that remember what they were asked."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.agents.loop import AgentLoop, AgentRequests, AgentRun
from bench.agents.proxy import HashingProxy, key_of, place_of
from bench.agents.run import AgentsComparison, AgentsSetting
from bench.agents.systems import endpoint as at_url
from bench.agents.texts import Measure
from bench.runner.comparison import compare
from bench.serve.client import Client, Endpoint, RequestFailedError
from headway.workload.sessions import Session, SessionTurn
from services.local.store import free_port
from tests.fakes.counting_endpoint import AROUND, CountingEndpoint

ASKING = AgentRequests("counted", "s")
EXACT = Measure(1.0, AROUND, 2 * AROUND)


def session(number: int, *lengths: int, children: tuple[int, ...] = ()) -> Session:
    turns = [SessionTurn(0.0, length, 10) for length in lengths]
    turns[0] = replace(turns[0], children=children)
    return Session(number, "agent", 0.0, tuple(turns))


async def run(url: str, sessions: list[Session], asking: AgentRequests = ASKING) -> AgentRun:
    client = Client(Endpoint.parse(url), 10.0)
    try:
        loop = AgentLoop(client, asking, EXACT, sessions, 16, {})
        return await loop.run(asyncio.Event())
    finally:
        client.close()


async def test_every_turn_sends_the_answers_before_it_and_meets_its_length() -> None:
    async with CountingEndpoint().serving() as endpoint:
        found = await run(endpoint.url, [session(0, 100, 200, 300)])
    messages = [each["messages"] for each in endpoint.bodies]
    assert [len(each) for each in messages] == [1, 3, 5]
    assert messages[2][:3] == messages[1]
    assert messages[1][1] == {"role": "assistant", "content": "a" * 10}
    assert [each.request.prompt_tokens for each in found.turns] == [100, 200, 300]
    assert [each.num_repeated for each in found.turns] == [0, 100, 200]
    assert [each.request.cached_tokens or 0 for each in found.turns][1:] != [0, 0]
    (life,) = found.lives
    assert (life.cut, life.is_task) == ("", True)


async def test_requests_name_their_session_and_the_last_one_says_so() -> None:
    async with CountingEndpoint().serving() as endpoint:
        await run(endpoint.url, [session(4, 100, 200)])
        await run(endpoint.url, [session(4, 100)], replace(ASKING, names=False))
    sent = [(each.get("x-session-id"), each.get("x-session-end")) for each in endpoint.headers]
    assert sent == [("s-4", None), ("s-4", "true"), (None, None)]


async def test_a_turn_waits_for_the_children_of_the_turn_before() -> None:
    child = replace(session(1, 150, 250), at=None)
    async with CountingEndpoint().serving() as endpoint:
        found = await run(endpoint.url, [session(0, 100, 200, children=(1,)), child])
    assert [(each.session, each.place) for each in found.turns] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert [each.is_task for each in found.lives] == [True, False]


async def test_a_turn_that_fails_ends_its_session_alone() -> None:
    async with CountingEndpoint().serving() as endpoint:
        first = await run(endpoint.url, [session(0, 100)])
        endpoint.refused = endpoint.bodies[0]["messages"][0]["content"]
        found = await run(endpoint.url, [session(0, 100, 200), session(1, 100, 200)])
    assert first.turns[0].request.error_kind == ""
    assert {each.session: each.cut for each in found.lives} == {0: "a turn failed", 1: ""}
    assert [each.request.error_kind for each in found.turns if each.session == 0] == ["HTTP 400"]


async def test_sessions_end_where_the_context_or_the_time_does() -> None:
    async with CountingEndpoint().serving() as endpoint:
        full = await run(endpoint.url, [session(0, 100, 200)], replace(ASKING, limit=150))
        late = await run(endpoint.url, [session(0, 100, 200)], replace(ASKING, seconds=0.0))
    assert ([each.cut for each in full.lives], len(full.turns)) == (["context is full"], 1)
    assert late.turns == []


async def test_a_run_measures_the_endpoint_and_writes_every_turn(tmp_path: Path) -> None:
    file = tmp_path / "agents.json"
    setting = AgentsSetting(lambda seed: [session(0, 100, 200)], 16, num_warm_up=1)
    async with CountingEndpoint().serving() as endpoint:
        what = AgentsComparison(setting, {"it": partial(at_url, endpoint.url)})
        assert (await compare(what, (1, 2), file)).status == 0
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    assert [len(each["turns"]) for each in runs] == [2, 2]
    prompts = [each["num_prompt_tokens"] for each in runs[0]["turns"]]
    assert all(abs(found - wanted) <= 4 for found, wanted in zip(prompts, (100, 200), strict=True))
    assert runs[0]["figures"]["cached"] > 0.2


# --- the proxy ------------------------------------------------------------------------


def test_a_session_is_its_name_else_how_its_messages_begin() -> None:
    first = {"messages": [{"role": "user", "content": "x" * 2000}]}
    longer = {"messages": [*first["messages"], {"role": "assistant", "content": "y"}]}
    bodies = [json.dumps(each).encode() for each in (first, longer)]
    assert key_of({}, bodies[0]) == key_of({}, bodies[1])
    assert key_of({"x-session-id": "a"}, bodies[0]) == b"a"
    assert key_of({}, b"no JSON") == b"no JSON"


def test_a_backend_more_takes_sessions_and_moves_none_between_the_others() -> None:
    keys = [f"session {number}".encode() for number in range(300)]
    before = [place_of(key, 3) for key in keys]
    after = [place_of(key, 4) for key in keys]
    assert {new for old, new in zip(before, after, strict=True) if new != old} == {3}
    assert all(before.count(place) > 60 for place in range(3))


async def test_the_proxy_passes_a_session_on_to_one_backend_with_its_stream() -> None:
    async with CountingEndpoint().serving() as one, CountingEndpoint().serving() as other:
        port, stopping = free_port(1), asyncio.Event()
        proxy = asyncio.create_task(HashingProxy([one.url, other.url]).serve(port, stopping))
        url = f"http://127.0.0.1:{port}"
        await _answers(url)
        try:
            found = await run(url, [session(number, 100, 200, 300) for number in range(8)])
        finally:
            stopping.set()
            await proxy
    assert [each.cut for each in found.lives] == [""] * 8
    places = [{each["x-session-id"] for each in backend.headers} for backend in (one, other)]
    assert all(places)
    assert not places[0] & places[1]


async def _answers(url: str) -> None:
    """Wait until somebody listens there."""
    client = Client(Endpoint.parse(url), 5.0)
    async with asyncio.timeout(30):
        while True:
            with suppress(RequestFailedError):
                await client.get("/v1/models")
                break
            await asyncio.sleep(0.01)
    client.close()
