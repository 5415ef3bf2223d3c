"""What a web page may make its browser ask of a gateway on loopback; files for connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headway.errors import HeadwayError
from services.gateway.http.descriptors import reserve
from services.gateway.http.exchange import HttpRefusal
from services.gateway.http.origins import Origins, require_json
from services.runtime.server import MOST_CLIENTS
from tests.fakes.gateway_harness import Cluster, cluster

PAGE = "https://app.example"
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 1}


def check(origins: Origins, host: str = "localhost", origin: str = "") -> None:
    headers = {b"host": host.encode()} | ({b"origin": origin.encode()} if origin else {})
    origins.check(headers)
    origins.check(headers)  # remembered


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8000", "LOCALHOST", "localhost.", "127.0.0.1:8000", "127.9.9.9"),
        *("[::1]:8000", "[::1]", "gateway.example", "gateway.example:8000", ""),
    ],
)
def test_names_of_loopback_and_those_given_are_answered_to(host: str) -> None:
    check(Origins(["Gateway.example"], [], loopback=True), host)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", "[::2]:1"]
)
def test_any_other_name_is_refused_on_loopback(host: str) -> None:
    with pytest.raises(HttpRefusal, match="--allowed-host") as caught:
        check(Origins([], [], loopback=True), host)
    assert caught.value.status == 403


def test_beyond_loopback_names_are_checked_once_some_are_given() -> None:
    check(Origins([], [], loopback=False), "any.example", "https://other.example")
    with pytest.raises(HttpRefusal):
        check(Origins(["gateway.example"], [], loopback=False), "any.example")


def test_a_page_may_call_its_own_host_and_where_its_origin_is_given() -> None:
    origins = Origins([], [PAGE], loopback=True)
    check(origins, "localhost:8000", "http://localhost:8000")
    check(origins, "localhost:8000", PAGE)
    for other in ("https://evil.example", "http://localhost:3000", "null", "http://["):
        with pytest.raises(HttpRefusal, match="--cors-origin"):
            check(origins, "localhost:8000", other)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_taken(kind: str) -> None:
    require_json({b"content-type": kind.encode()})


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_type_that_a_page_may_send_unasked_is_refused(kind: str) -> None:
    with pytest.raises(HttpRefusal, match="application/json") as caught:
        require_json({b"content-type": kind.encode()})
    assert caught.value.status == 415


async def test_a_rebound_page_can_neither_generate_nor_read(running: Cluster) -> None:
    async with running.http() as client:
        rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
        for path in ("/v1/models", "/health", "/metrics"):
            assert (await client.get(path, headers=rebound)).status_code == 403
        assert (await ask(client, rebound)).status_code == 403
        assert (await ask(client, {"origin": "https://evil.example"})).status_code == 403
        assert (await ask(client, {"content-type": "text/plain"})).status_code == 415
        assert (await ask(client, {})).status_code == 200


async def test_a_page_of_an_allowed_origin_may_ask_and_read(tmp_path: Path, store_url: str) -> None:
    async with cluster(tmp_path, store_url, cors_origin=PAGE) as running, running.http() as client:
        wants = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,x-stainless-os",
        }
        allowed = await client.options("/v1/completions", headers=wants)
        assert allowed.status_code == 204
        allowed_headers = allowed.headers["access-control-allow-headers"]
        assert allowed_headers == wants["access-control-request-headers"]
        for found in (await ask(client, {"origin": PAGE}), await client.get("/no", headers=wants)):
            assert found.headers["access-control-allow-origin"] == PAGE
            assert found.headers["vary"] == "origin"
        assert "access-control-allow-origin" not in (await ask(client, {})).headers


async def ask(client: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
    return await client.post("/v1/completions", json=BODY, headers=headers)


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """A low limit of file descriptors that the process may raise itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 1536
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_files_is_raised_for_the_connections_and_never_lowered(
    soft_limit: int,
) -> None:
    reserve(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft_limit
    reserve(600)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 600 + MOST_CLIENTS


def test_more_connections_than_files_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    with pytest.raises(HeadwayError, match="ask for at most 768, or raise") as caught:
        reserve(4096)
    assert caught.value.param == "max_connections"
