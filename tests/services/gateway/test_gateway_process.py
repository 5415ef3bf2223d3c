"""The gateway as a process of its own: flags, TLS, signals."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from pathlib import Path

import httpx
import pytest

from services.gateway.config import GatewayConfig
from services.runtime.config import load_config
from services.runtime.store import Member, Store
from tests.fakes.tiny_model import write_model


async def started(store_url: str, cluster: str, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.gateway", "--store", store_url, "--cluster", cluster),
        *("--http-port", "0", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def joined(store: Store) -> Member:
    members: list[Member] = []
    async with asyncio.timeout(30):
        while not members:
            await asyncio.sleep(0.05)
            members = await store.members("gateway")
    return members[0]


async def test_a_process_serves_https_and_leaves_on_sigterm(
    tmp_path: Path, store_url: str, certificate: tuple[Path, Path]
) -> None:
    model = str(write_model(tmp_path / "tiny"))
    tls = ("--http-tls-cert", str(certificate[0]), "--http-tls-key", str(certificate[1]))
    process = await started(store_url, tmp_path.name, "--model", model, *tls)
    store = await Store.connect(store_url, tmp_path.name)
    member = await joined(store)
    assert member.model == "tiny"
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    async with httpx.AsyncClient(verify=trust, timeout=300) as client:
        health = (await client.get(f"https://{member.detail['http']}/health")).json()
    assert health.pop("reason").startswith("no scheduler leads")
    assert health == {"status": "not ready", "model": "tiny", "scheduler_connected": False}
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert await store.members("gateway") == []
    await store.close()


async def test_a_process_without_a_model_says_so_and_ends(tmp_path: Path, store_url: str) -> None:
    process = await started(store_url, tmp_path.name, "--model", str(tmp_path / "none"))
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"none" in output
    assert b"Traceback" not in output


@pytest.mark.parametrize(
    "flags", [["--http-tls-cert", "x.pem"], ["--max-waiting", "0"], ["--http-port", "70000"]]
)
def test_flags_that_make_no_sense_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_config(GatewayConfig, flags)
    assert capsys.readouterr().err


def test_everything_binds_to_loopback_unless_told_otherwise() -> None:
    config = load_config(GatewayConfig, [])
    assert config.http_host == "127.0.0.1"
    assert config.listen.startswith("127.0.0.1:")
