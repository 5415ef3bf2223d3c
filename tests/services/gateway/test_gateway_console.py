"""The console: who may see it, its files, and its stream of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from cli import main
from headway.cluster import Role
from headway.console.patch import apply_patch
from headway.errors import HeadwayError
from headway.messages import MeasuredCosts
from headway.picture import ClusterPicture, CostPicture, WindowPicture, WorkerPicture
from services.gateway.auth import key_line
from services.gateway.console.feed import MOST_WATCHERS
from services.gateway.console.pages import files
from services.gateway.console.routes import ConsoleRoutes, row_query
from services.gateway.console.what_if import WhatIfDesk
from services.gateway.http.exchange import HttpRefusal
from services.runtime.store import Member
from tests.fakes.gateway_harness import Cluster, cluster, until

WORKER = WorkerPicture(
    "decode-1", Role.DECODE, "tiny", "127.0.0.1:1", 1, False, 3, 1, 0, 480, 0, 16, 100, 30, 10
)
WINDOW = WindowPicture("tiny", 1, 4, 0, 99, 2, "open", 0.01, 0.005)
PICTURE = ClusterPicture(7, (WORKER,), (WINDOW,), (), 5, 1, 0, 0)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}


async def frames(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the frame after each event of the stream; the history comes as one of its own."""
    frame: dict[str, Any] = {}
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            if name == "history":
                yield {"history": data}
                continue
            frame = data if name == "state" else apply_patch(frame, data)
            yield frame


def patient(running: Cluster, key: str = "") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=running.url, headers=headers, timeout=300)


async def test_the_page_is_served_with_a_policy_that_loads_nothing_from_elsewhere(
    running: Cluster,
) -> None:
    async with patient(running) as client:
        page = await client.get("/console")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; script-src 'self' 'sha256-")
        assert "unsafe" not in policy
        assert (await client.get("/console/")).text == page.text
        for path, file in files().items():
            found = await client.get(path)
            assert (found.status_code, found.content) == (200, file.body)
            assert found.headers["content-encoding"] == "gzip"
            plain = await client.get(path, headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers
            assert plain.content == file.body
        assert (await client.get("/console/../service.py")).status_code == 404
        assert (await client.post("/console", json={})).status_code == 405


async def test_the_stream_shows_a_request_while_it_waits_and_counts_it_at_its_end(
    running: Cluster,
) -> None:
    running.emulated.picture, running.emulated.paused = PICTURE, True
    async with patient(running) as client, asyncio.TaskGroup() as group:
        sent = group.create_task(client.post("/v1/chat/completions", json=BODY))
        async with client.stream("GET", "/console/stream?sort=wait&rows=5") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            is_seen = False
            async for frame in frames(response):
                rows = frame.get("requests", {}).get("rows", {})
                if rows and not is_seen and frame.get("workers"):
                    ((request_id, row),) = rows.items()
                    assert request_id.startswith("chatcmpl-")
                    assert row["phase"] == "queued"
                    card = frame["workers"]["decode-1"]
                    assert (card["batch"], card["kv_used"]) == (3, 0.3)
                    assert frame["cluster"]["windows"]["tiny"]["num_waiting"] == 4
                    assert frame["leader"]["id"] == "emulated"
                    assert frame.get("autoscaler") is None
                    is_seen = True
                    running.emulated.paused = False
                    running.emulated.hang_up()  # the next stream brings the request again
                if is_seen and not rows and frame.get("classes"):
                    (figures,) = frame["classes"].values()
                    assert figures["ended"] == 1
                    break
        assert (await sent).status_code == 200


async def test_a_leader_that_does_not_answer_is_an_outage_and_workers_stay_as_they_were(
    running: Cluster,
) -> None:
    running.emulated.picture = PICTURE
    await running.store.join(Member("worker", "decode-1", "127.0.0.1:1", "decode"), 600.0)
    async with patient(running) as client, client.stream("GET", "/console/stream") as response:
        before: dict[str, Any] = {}
        async for frame in frames(response):
            if not before and frame.get("silent") == {} and frame.get("workers"):
                before = frame
                running.emulated.picture = None
            if before and "leader" in frame["silent"]:
                break
        assert frame["now"] - frame["silent"]["leader"] > 0
        assert "store" not in frame["silent"]
        assert frame["workers"]["decode-1"] == before["workers"]["decode-1"]
        assert frame["cluster"] == before["cluster"]


async def test_the_stream_ends_when_the_gateway_drains(running: Cluster) -> None:
    async with patient(running) as client, client.stream("GET", "/console/stream") as response:
        told = frames(response)
        assert "history" in await anext(told)
        await running.service.drain()
        async for _ in told:
            pass  # it ends


async def test_so_many_may_watch_and_no_more(running: Cluster) -> None:
    async with patient(running) as client:
        watching = [client.stream("GET", "/console/stream") for _ in range(MOST_WATCHERS)]
        for stream in watching:
            await stream.__aenter__()
        refused = await client.get("/console/stream")
        assert refused.status_code == 429
        await watching[0].__aexit__(None, None, None)
        async with asyncio.timeout(60):
            while True:
                async with client.stream("GET", "/console/stream") as again:
                    if again.status_code == 200:
                        break
        for stream in watching[1:]:
            await stream.__aexit__(None, None, None)


async def test_with_keys_the_data_is_an_operators_and_the_page_asks_for_the_key(
    tmp_path: Path, store_url: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{key_line('ann', 'hw-ann')}\n{key_line('ops', 'hw-ops', operator=True)}")
    keys.chmod(0o600)
    async with cluster(tmp_path, store_url, api_key_file=keys) as running:
        async with patient(running) as client:
            assert (await client.get("/console")).status_code == 200
            assert (await client.get("/console/stream")).status_code == 401
        async with patient(running, "hw-ann") as client:
            assert (await client.get("/console/stream")).status_code == 403
        async with (
            patient(running, "hw-ops") as client,
            client.stream("GET", "/console/stream") as response,
        ):
            assert response.status_code == 200
            assert "history" in await anext(frames(response))


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("address 127.0.0.1", True),
        ("address ::/64", True),
        ("local", True),
        ("address 10.0.0.7", False),
        ("address 2001:db8::/64", False),
        ("", False),
    ],
)
async def test_without_keys_it_is_for_clients_on_this_machine(
    address: str, is_here: bool, running: Cluster
) -> None:
    routes: ConsoleRoutes = running.service.console
    if is_here:
        routes.screen("/console", "", address)
        routes.screen("/console/stream", "", address)
        return
    for path in ("/console", "/console/stream"):
        with pytest.raises(HttpRefusal, match="--api-key-file"):
            routes.screen(path, "", address)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=name", "sort is 'name'"),
        ("phase=asleep", "phase is 'asleep'"),
        ("rows=0", "rows is 0"),
        ("rows=100000", "rows is 100000"),
        ("rows=x", "rows is 'x'"),
        ("&".join(f"a{n}=1" for n in range(20)), "at most 16 fields"),
    ],
)
def test_a_query_that_is_none_is_refused(query: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        row_query(query)


async def test_a_page_of_another_origin_and_another_host_are_refused(running: Cluster) -> None:
    async with patient(running) as client:
        foreign = {"origin": "http://evil.example"}
        assert (await client.get("/console/stream", headers=foreign)).status_code == 403
        rebound = {"host": "evil.example"}
        assert (await client.get("/console", headers=rebound)).status_code == 403


async def test_nobody_asks_the_leader_while_nobody_watches(running: Cluster) -> None:
    running.emulated.picture = PICTURE
    async with patient(running) as client:
        async with client.stream("GET", "/console/stream") as response:
            async for frame in frames(response):
                if frame.get("workers"):
                    break
        await until(lambda: not running.service.console.feed.is_watched)


async def test_who_looks_later_is_not_shown_as_new_what_another_one_saw(running: Cluster) -> None:
    """Whatever the leader said to the last one who looked, it may have died since."""
    running.emulated.picture = PICTURE

    async def first_frame(client: httpx.AsyncClient) -> dict[str, Any]:
        async with client.stream("GET", "/console/stream") as response:
            async for frame in frames(response):
                if "history" not in frame:
                    return frame
        raise AssertionError("the stream ended without a frame")

    await running.store.join(Member("worker", "decode-1", "127.0.0.1:1", "decode"), 600.0)
    async with patient(running) as client:
        assert (await first_frame(client))["silent"] == {}
        await until(lambda: not running.service.console.feed.is_watched)
        running.emulated.picture = None
        assert "leader" in (await first_frame(client))["silent"]


async def test_top_prints_what_the_page_shows(
    running: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    running.emulated.picture = PICTURE
    flags = ["top", "--once", "--url", running.url]
    assert await asyncio.to_thread(main, flags) == 0
    said = capsys.readouterr().out
    assert "decode-1" in said
    assert "serving" in said
    assert "No request is open that fits." in said


async def test_what_was_recorded_is_replayed_by_the_simulator(
    running: Cluster, tmp_path: Path
) -> None:
    asked = {"preset": "sbs", "profile": "llama-8b-a100", "prefill": 1, "decode": 1}
    file, trace = tmp_path / "policy.py", tmp_path / "executed"
    file.write_text(f"open({str(trace)!r}, 'w').close()")
    async with patient(running) as client:
        empty = await client.post("/console/what-if", json=asked)
        assert "nothing to replay" in empty.json()["error"]["message"]
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
        found = await client.post("/console/what-if", json=asked)
        assert found.status_code == 200, found.text
        assert found.json()["num_requests"] == 3
        assert found.json()["replayed"]["ttft_p50"] > 0
        assert found.json()["control"] == found.json()["replayed"]
        other = await client.post("/console/what-if", json={**asked, "recorded": {"decode": 1}})
        assert other.json()["replayed"] == found.json()["replayed"]
        assert other.json()["control"]["ttft_p50"] is None
        for wrong, said in (
            ({**asked, "profile": "../../secret"}, "the name of a profile"),
            ({**asked, "prefill": "many"}, "whole numbers"),
            ({**asked, "policy": f"batching={file}"}, "one of chats-first"),
            ({**asked, "policy": "batching=./none.py"}, "one of chats-first"),
        ):
            refused = await client.post("/console/what-if", json=wrong)
            assert refused.status_code == 400, refused.text
            assert said in refused.json()["error"]["message"]
        assert not trace.exists()
        running.emulated.picture = PICTURE
        unmeasured = await client.post("/console/what-if", json={**asked, "profile": ""})
        assert "too few prompts" in unmeasured.json()["error"]["message"]
        measures = MeasuredCosts(base=0.01, per_prefill_token=1e-4, per_request=1e-3)
        costs = CostPicture(512, 1024, measures)
        running.emulated.picture = replace(PICTURE, workers=(replace(WORKER, costs=costs),))
        measured = await client.post("/console/what-if", json={**asked, "profile": ""})
        assert measured.status_code == 200, measured.text
        assert measured.json()["profile"] == "measured"
        assert (await client.get("/console/what-if")).status_code == 405


async def test_a_head_opens_no_stream_and_a_bug_is_logged_and_answered(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: bytes) -> bytes:
        raise ValueError("a bug")

    monkeypatch.setattr(WhatIfDesk, "ask", lambda _, body: broken(body))
    async with patient(running) as client:
        assert (await client.head("/console/stream")).status_code == 200
        assert not running.service.console.feed.is_watched
        with capture_logs() as logs:
            answer = await client.post("/console/what-if", json={})
        assert answer.status_code == 500
        assert "has been logged" in answer.json()["error"]["message"]
        assert "unexpected_error" in {log["event"] for log in logs}
