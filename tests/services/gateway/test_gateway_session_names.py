"""Sessions at the edges: by which names they go, how they end, and responses that are continued."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.errors import Code, HeadwayError
from headway.request import Request
from services.gateway.api_call import ApiCall, ResponseHistory, SessionAsk
from services.gateway.openai.stored_responses import StoredResponses
from services.gateway.sessions import in_session
from tests.fakes.gateway_harness import Cluster, cluster

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def post(running: Cluster, headers: dict[str, str] | None = None, **more: Any) -> Any:
    async with running.http() as client:
        return await client.post(CHAT, json={**BODY, **more}, headers=headers or {})


async def asked(running: Cluster, headers: dict[str, str] | None = None, **more: Any) -> Request:
    answer = await post(running, headers, **more)
    assert answer.status_code == 200, answer.text
    return running.emulated.submitted[-1]


def named(ask: SessionAsk, **headers: str) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    call = ApiCall("m", ("x",), {}, session=ask)
    return in_session(call, lambda name: given.get(name, "")).session_id


def test_the_plainest_name_wins() -> None:
    ask = SessionAsk("body", "implied")
    traced = {"x_correlation_id": "trace"}
    routed = {**traced, "x_session_affinity": "aiperf", "x_smg_routing_key": "sglang"}
    ours = {**routed, "x_dynamo_session_id": "dynamo", "x_session_id": "ours"}
    assert named(ask, **ours) == "body"
    assert named(ask._replace(named=""), **ours) == "ours"
    assert named(SessionAsk("", "implied"), **routed) == "sglang"
    assert named(SessionAsk("", "implied"), **traced) == "implied"
    assert named(SessionAsk(), **traced) == "trace"
    assert named(SessionAsk()) == ""


def test_a_token_names_a_session_by_its_digest_alone() -> None:
    name = named(SessionAsk(), x_session_token="secret")
    assert name.startswith("token-")
    assert "secret" not in name


@pytest.mark.parametrize(
    ("headers", "more", "name", "ends"),
    [
        ({"x-session-id": "s"}, {}, "s", False),
        ({"x-session-id": "s", "x-session-end": "true"}, {}, "s", True),
        ({"x-dynamo-session-id": "s", "x-dynamo-session-final": "1"}, {}, "s", True),
        ({}, {"session_id": "s", "session_end": True}, "s", True),
        ({}, {"prompt_cache_key": "s"}, "s", False),
        ({}, {"session_id": "s", "max_turns": 1}, "s", True),
        ({}, {"nvext": {"session_control": {"session_id": "s", "action": "close"}}}, "s", True),
        ({"x-session-end": "0"}, {}, "", False),
        ({"x-session-end": "True"}, {}, "", True),
    ],
)
async def test_a_request_bears_its_session(
    running: Cluster, headers: dict[str, str], more: dict[str, Any], name: str, ends: bool
) -> None:
    request = await asked(running, headers, **more)
    assert (request.session_id, request.ends_session) == (name, ends)


async def test_the_turn_that_a_client_bounded_a_session_by_is_its_last(running: Cluster) -> None:
    ends = [(await asked(running, session_id="s", max_turns=2)).ends_session for _ in range(3)]
    assert ends == [False, True, False]


@pytest.mark.parametrize(
    ("headers", "more", "param"),
    [
        ({"x-session-id": "x" * 257}, {}, "x-session-id"),
        ({"x-session-end": "maybe"}, {}, "x-session-end"),
        ({}, {"session_id": "x" * 257}, "session_id"),
        ({}, {"session_id": "a\nb"}, "session_id"),
        ({}, {"session_id": ""}, "session_id"),
        ({}, {"prompt_cache_key": "\x1b[31m"}, "prompt_cache_key"),
        ({}, {"max_turns": 3}, "max_turns"),
        ({}, {"session_id": "s", "max_turns": 0}, "max_turns"),
        ({}, {"nvext": {"other": 1}}, "nvext.other"),
    ],
)
async def test_what_names_no_session_is_refused_by_its_field(
    running: Cluster, headers: dict[str, str], more: dict[str, Any], param: str
) -> None:
    answer = await post(running, headers, **more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# --- responses that are continued -----------------------------------------------------


async def test_a_response_is_continued_with_all_before_it(running: Cluster) -> None:
    client = running.openai().responses
    first = await client.create(model="tiny", input="One.", instructions="Be short.")
    more: dict[str, Any] = {"previous_response_id": first.id, "max_output_tokens": 400}
    second = await client.create(model="tiny", input="Two.", **more)
    third = await client.create(
        model="tiny", input="Three.", previous_response_id=second.id, max_output_tokens=400
    )
    assert second.previous_response_id == first.id
    prompts = [bytes(t for t in r.prompt_token_ids if t < 256) for r in running.emulated.submitted]
    echo = prompts[0]  # the emulated worker answers with its prompt
    assert echo.endswith(b"Be short.One.")
    assert prompts[1].startswith(b"One."), "instructions are not carried over"
    assert prompts[1].endswith(echo + b"Two.")
    assert prompts[2].index(b"One.") < prompts[2].index(b"Two.") < prompts[2].index(b"Three.")
    names = [request.session_id for request in running.emulated.submitted]
    assert names == ["", first.id, first.id]
    assert third.status == "completed"


async def test_a_short_body_with_a_long_conversation_is_read_in_a_thread(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, find = [], StoredResponses.find

    def noted(stored: StoredResponses, tenant: str, response_id: str) -> ResponseHistory:
        looked.append(threading.current_thread())
        history = find(stored, tenant, response_id)
        assert history.num_bytes > len(padding)
        assert all(isinstance(item, bytes) for item in history.items)
        return history

    monkeypatch.setattr(StoredResponses, "find", noted)
    padding: list[Any] = [[]] * 10_000
    items: list[Any] = [{"type": "reasoning", "content": padding}]
    items.append({"role": "user", "content": "One."})
    client = running.openai().responses
    first = await client.create(model="tiny", input=items)
    await client.create(model="tiny", input="Two.", previous_response_id=first.id)
    (thread,) = looked
    assert thread is not threading.main_thread()


@pytest.mark.parametrize("store", [True, False])
async def test_what_is_not_stored_is_not_found(running: Cluster, store: bool) -> None:
    client = running.openai().responses
    first = await client.create(model="tiny", input="One.", store=store)
    with pytest.raises(openai.NotFoundError) if not store else contextlib.nullcontext() as caught:
        await client.create(model="tiny", input="Two.", previous_response_id=first.id)
    if caught is not None:
        found = caught.value
        assert (found.param, found.code) == ("previous_response_id", "previous_response_not_found")


async def test_a_gateway_may_store_nothing(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, max_stored_bytes=0) as running:
        client = running.openai().responses
        first = await client.create(model="tiny", input="One.")
        with pytest.raises(openai.BadRequestError, match="stores no response"):
            await client.create(model="tiny", input="Two.", previous_response_id=first.id)


def ids_kept(stored: StoredResponses, tenant: str, ids: str) -> str:
    found = ""
    for each in ids:
        with contextlib.suppress(HeadwayError):
            stored.find(tenant, each)
            found += each
    return found


def test_stored_responses_are_bounded_in_bytes_and_age_and_kept_apart() -> None:
    now = 0.0
    stored = StoredResponses(10, 9, 60.0, lambda: now)
    stored.keep("ann", "a", ResponseHistory((b'{"x":1}',), 3))
    for each in "bcd":
        stored.keep("bob", each, ResponseHistory((), 3))
    assert ids_kept(stored, "bob", "abcd") == "cd", "who has most gives way, and sees its own alone"
    assert (ids_kept(stored, "ann", "abcd"), stored.num_bytes) == ("a", 9)
    stored.keep("bob", "e", ResponseHistory((), 10))
    assert ids_kept(stored, "bob", "cde") == "cd", "what never fits costs nobody a place"
    now = 61.0
    with pytest.raises(HeadwayError) as caught:
        stored.find("ann", "a")
    assert caught.value.code is Code.NOT_FOUND
    stored.keep("bob", "f", ResponseHistory((), 1))
    assert (stored.num_stored, stored.num_bytes) == (1, 1)
