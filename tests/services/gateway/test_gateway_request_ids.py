"""A client's own id names its request in headers, explanations and metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.request import is_named
from services.gateway.auth import KeyRing, check_client_id, key_line
from tests.fakes.gateway_harness import Cluster, cluster, write_keys

BODY = {"model": "tiny", "prompt": "hello"}


async def test_the_clients_id_comes_back_and_so_does_the_reason(running: Cluster) -> None:
    async with running.http() as client:
        for body in (BODY, {**BODY, "stream": True}):
            found = await client.post(
                "/v1/completions", json=body, headers={"x-request-id": "my-1"}
            )
            assert found.headers.get_list("x-request-id") == ["my-1"]
            assert found.headers["x-headway-decision"] == "at once; unit=emulated/0"
        assert '"id":"cmpl-my-1"' in found.text
        first, second = (request.request_id for request in running.emulated.submitted)
        assert first != second
        assert is_named(first, "my-1")
        assert is_named(second, "my-1")


async def test_an_id_in_the_body_is_the_answers_unless_a_header_gives_one(running: Cluster) -> None:
    said = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    item = {"model": "tiny", "input": "hi"}
    async with running.http() as client:
        for path, body, shown in (
            ("/v1/completions", BODY, "cmpl-my-4"),
            ("/v1/chat/completions", said, "chatcmpl-my-4"),
            ("/v1/responses", item, "resp_my-4"),
        ):
            found = await client.post(path, json={**body, "request_id": "my-4"})
            assert (found.headers["x-request-id"], found.json()["id"]) == ("my-4", shown)
            assert is_named(running.emulated.submitted[-1].request_id, "my-4")
        headers = {"x-request-id": "my-5"}
        streamed = {**BODY, "request_id": "my-4", "stream": True}
        found = await client.post("/v1/completions", json=streamed, headers=headers)
        assert found.headers.get_list("x-request-id") == ["my-5"]
        assert '"id":"cmpl-my-5"' in found.text
        for wrong in ("a b", "a~b", "x" * 81, "", 7):
            found = await client.post("/v1/completions", json={**BODY, "request_id": wrong})
            assert (found.status_code, found.json()["error"]["param"]) == (400, "request_id")


async def test_an_id_that_is_none_is_refused(running: Cluster) -> None:
    async with running.http() as client:
        for wrong in ("a b", "a~b", "x" * 81, "é"):
            headers = {b"x-request-id": wrong.encode("latin-1")}
            found = await client.post("/v1/completions", json=BODY, headers=headers)
            assert found.status_code == 400
            assert "x-request-id" in found.json()["error"]["message"]


async def test_a_refusal_bears_the_clients_id(running: Cluster) -> None:
    async with running.http() as client:
        headers = {"x-request-id": "my-2"}
        found = await client.post("/v1/completions", json={"model": "x"}, headers=headers)
        assert (found.status_code, found.headers["x-request-id"]) == (400, "my-2")


async def test_explanations_are_of_the_callers_own_requests(tmp_path: Path, store_url: str) -> None:
    keys = write_keys(tmp_path / "k")
    async with cluster(tmp_path, store_url, api_key_file=keys) as running, running.http() as client:
        headers = {"x-request-id": "mine", "authorization": "Bearer hw-a"}
        await client.post("/v1/completions", json=BODY, headers=headers)
        (request,) = running.emulated.submitted
        for key in "ab":
            headers = {"authorization": f"Bearer hw-{key}"}
            assert (await client.get("/explain/mine", headers=headers)).status_code == 200
        (of_a, of_b) = running.emulated.asked_about
        assert is_named(request.request_id, of_a)
        assert not is_named(request.request_id, of_b)
        found = await client.get(f"/explain/{request.request_id}", headers=headers)
        assert found.status_code == 403


async def test_buckets_of_latencies_name_a_request(running: Cluster) -> None:
    async with running.http() as client:
        headers = {"x-request-id": "my-3"}
        await client.post("/v1/completions", json=BODY, headers=headers)
        accepts = {"accept": "application/openmetrics-text; version=1.0.0"}
        found = await client.get("/metrics", headers=accepts)
        assert found.headers["content-type"].startswith("application/openmetrics-text")
        lines = [n for n in found.text.splitlines() if "ttft_seconds_bucket" in n and "my-3~" in n]
        assert lines
        assert "my-3" not in (await client.get("/metrics")).text


def test_an_id_of_a_client_is_short_and_plain() -> None:
    assert check_client_id("a.b_c:d/e=f+g@h-1") == "a.b_c:d/e=f+g@h-1"
    assert check_client_id("") == ""
    with pytest.raises(HeadwayError, match="80 letters"):
        check_client_id("x\n")


def test_an_operator_finds_every_request_by_its_id(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{key_line('ann', 'a')}\n{key_line('ops', 'o', operator=True)}\n")
    file.chmod(0o600)
    keys = KeyRing.load(file)
    found = keys.new_id("cmpl", "ann", "mine")
    assert is_named(found, keys.find_own("ann", "mine"))
    assert is_named(found, keys.find_own("ops", "mine"))
    assert keys.find_own("ann", found) == keys.find_own("ops", found) == found
