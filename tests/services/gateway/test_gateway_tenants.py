"""Keys belong to tenants, have limits and classes; metrics say who used what."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from headway.errors import HeadwayError
from headway.service_class import Quota
from services.gateway.auth import KeyRing, key_line
from tests.fakes.gateway_harness import Cluster, cluster, until

BODY = {"model": "tiny", "prompt": "hello"}


def write(folder: Path, **options: object) -> Path:
    file = folder / "keys"
    lines = [key_line("ann", "a", options=options), key_line("ops", "o", operator=True)]
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return file


@asynccontextmanager
async def serving(folder: Path, store_url: str, **options: object) -> AsyncIterator[Cluster]:
    async with cluster(folder, store_url, api_key_file=write(folder, **options)) as running:
        yield running


async def post(running: Cluster, headers: dict[str, str] | None = None, **body: Any) -> Any:
    async with running.http() as client:
        sent = {"authorization": "Bearer a", **(headers or {})}
        return await client.post("/v1/completions", json={**BODY, **body}, headers=sent)


def test_a_line_says_whose_the_key_is_and_what_it_may(tmp_path: Path) -> None:
    options = {"tenant": "acme", "share": 2, "class": "batch", "requests": 3, "waiting": 1}
    keys = KeyRing.load(write(tmp_path, **options, **{"tokens-per-minute": 900}))
    key = keys.of_client("key ann")
    assert (key.tenant, key.share, key.service_class) == ("acme", 2.0, "batch")
    assert key.quota == Quota(3, 1, 900)
    plain = keys.of_client("key ops")
    assert (plain.tenant, plain.is_operator, plain.quota) == ("ops", True, Quota())
    assert keys.of_client("address 1.2.3.4").tenant == ""


@pytest.mark.parametrize(
    "option", ["colour=red", "share=0", "requests=many", "requests=-1", "requests=1:requests=100"]
)
def test_an_option_that_is_none_is_refused_with_its_line(tmp_path: Path, option: str) -> None:
    file = write(tmp_path)
    file.write_text(f"ann:{hashlib.sha256(b'a').hexdigest()}:{option}")
    with pytest.raises(HeadwayError, match="line 1"):
        KeyRing.load(file)


async def test_a_request_bears_its_tenant_and_its_keys_class(
    tmp_path: Path, store_url: str
) -> None:
    options = {"tenant": "acme", "share": 2, "class": "batch"}
    async with serving(tmp_path, store_url, **options) as running:
        await post(running)
        await post(running, priority=3)
        await post(running, {"x-headway-class": "interactive"}, priority=3)
        await post(running, {"x-headway-class": "batch"}, headway={"class": "agent"})
        standings = [request.standing for request in running.emulated.submitted]
        assert {(each.tenant, each.share) for each in standings} == {("acme", 2.0)}
        named = [each.service.name if each.service else "" for each in standings]
        assert named == ["batch", "agent", "interactive", "agent"]
        found = await post(running, {"x-headway-class": "bathc"})
        assert found.status_code == 400
        assert "interactive, agent, batch" in found.json()["error"]["message"]
        (batch, *_) = running.emulated.submitted
        assert batch.deadline_at - batch.arrival_at == pytest.approx(86_400.0, abs=5.0)


async def test_limits_are_told_and_kept(tmp_path: Path, store_url: str) -> None:
    limits = {"requests": 2, "tokens-per-minute": 12}
    async with serving(tmp_path, store_url, **limits) as running:
        first = await post(running)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-limit-tokens"] == "12"
        assert (await post(running, n=3)).status_code == 400
        await until(lambda: running.service.num_open == 0)
        second = await post(running, prompt="a much longer prompt than a minute has tokens for")
        assert second.status_code == 200
        refused = await post(running)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        for again in (refused, await post(running, prompt="long " * 2000)):
            assert again.status_code == 429
            assert again.headers["x-ratelimit-remaining-tokens"] == "0"
            assert "12 tokens" in again.json()["error"]["message"]


async def test_limits_are_told_where_the_core_refuses_a_request(
    tmp_path: Path, store_url: str
) -> None:
    file = write(tmp_path, **{"tokens-per-minute": 1000})
    async with cluster(tmp_path, store_url, api_key_file=file, max_waiting=1) as running:
        running.emulated.paused = True
        refused = await post(running, n=1, prompt=["a", "b"])
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_a_request_that_the_context_cannot_hold_costs_its_key_nothing(
    tmp_path: Path, store_url: str
) -> None:
    async with serving(tmp_path, store_url, **{"tokens-per-minute": 1000}) as running:
        refused = await post(running, prompt="long " * 600, max_tokens=10**6)
        assert refused.status_code == 400
        assert "prompt and output may have" in refused.json()["error"]["message"]
        assert (await post(running)).status_code == 200


async def test_usage_and_promises_are_in_the_metrics(tmp_path: Path, store_url: str) -> None:
    async with serving(tmp_path, store_url, tenant="acme") as running:
        found = await post(running, headway={"class": "batch"})
        usage = found.json()["usage"]
        async with running.http() as client:
            headers = {"authorization": "Bearer o"}
            text = (await client.get("/metrics", headers=headers)).text
        lines = text.splitlines()
        for kind in ("prompt", "output"):
            name = f'headway_gateway_tenant_tokens_total{{kind="{kind}",tenant="acme"}}'
            count = usage["prompt_tokens" if kind == "prompt" else "completion_tokens"]
            assert f"{name} {float(count)}" in lines
        kept = 'class_promises_total{kept="yes",promise="ttft",service_class="batch"} 1.0'
        assert f"headway_gateway_{kept}" in lines
        assert any("class_ttft_seconds_count" in line and line.endswith(" 1.0") for line in lines)


async def test_what_is_still_to_come_counts_for_its_keys_minute(
    tmp_path: Path, store_url: str
) -> None:
    async with serving(tmp_path, store_url, **{"tokens-per-minute": 40}) as running:
        running.emulated.paused = True
        first = asyncio.create_task(post(running, max_tokens=100))
        await until(lambda: len(running.emulated.submitted) == 1)
        assert (await post(running, max_tokens=100)).status_code == 429
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await until(lambda: running.service.num_open == 0)
        running.emulated.paused = False
        assert (await post(running)).status_code == 200


async def test_a_key_may_be_bound_to_classes(tmp_path: Path, store_url: str) -> None:
    async with serving(tmp_path, store_url, **{"classes": "agent,interactive"}) as running:
        refused = await post(running, headway={"class": "batch"})
        assert refused.status_code == 403
        assert "agent, interactive" in refused.json()["error"]["message"]
        await post(running, priority=99)
        service = running.emulated.submitted[-1].standing.service
        assert service is not None
        assert service.name == "agent"


@pytest.mark.parametrize(("option", "seconds"), [("", 600.0), ("classes", 86_400.0)])
async def test_a_shipped_class_gives_time_to_keys_that_name_it(
    tmp_path: Path, store_url: str, option: str, seconds: float
) -> None:
    options = {option: "batch"} if option else {}
    async with serving(tmp_path, store_url, **options) as running:
        with capture_logs() as logs:
            await post(running, headway={"class": "batch"})
            await post(running, headway={"class": "batch"})
        request = running.emulated.submitted[-1]
        assert request.deadline_at - request.arrival_at == pytest.approx(seconds, abs=5.0)
        assert [each["event"] for each in logs].count("classes_without_effect") == 1


@pytest.mark.parametrize("fair", [False, True])
async def test_without_keys_addresses_are_tenants_where_fair_clients_says_so(
    fair: bool, tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, fair_clients=fair) as running:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.2"):
            transport = httpx.AsyncHTTPTransport(local_address=address)
            async with httpx.AsyncClient(transport=transport) as client:
                answer = await client.post(f"{running.url}/v1/completions", json=BODY)
                assert answer.status_code == 200
        found = [request.standing.tenant for request in running.emulated.submitted]
    assert found == (["127.0.0.1", "127.0.0.2", "127.0.0.2"] if fair else [""] * 3)


def test_keys_say_whose_a_request_is_with_fair_clients_too(tmp_path: Path) -> None:
    keys = KeyRing(write(tmp_path, tenant="acme"), fair_clients=True)
    assert keys.of_client("key ann").tenant == "acme"
    assert keys.of_client("address 1.2.3.4").tenant == ""


async def test_outputs_times_the_cost_of_their_grammar_are_charged_when_they_are_admitted(
    tmp_path: Path, store_url: str
) -> None:
    form = {"structured_outputs": {"regex": "[ab]+"}}
    async with serving(tmp_path, store_url) as running:
        assert (await post(running, n=2, **form)).status_code == 200
    async with cluster(tmp_path / "small", store_url, max_mask_seconds=0.001) as running:
        assert (await post(running, n=2)).status_code == 200
        refused = await post(running, n=2, **form)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert "one client may have 1 of 1 (--max-mask-seconds)" in message
    assert message.endswith("ask for fewer outputs, fewer tokens or a simpler grammar")
