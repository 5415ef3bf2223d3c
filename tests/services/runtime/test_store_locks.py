"""Who is kept out of the store, and what a service says that is."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis

from headway.errors import Code, HeadwayError
from services.local.store import LocalStore
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Store
from tests.fakes.certificates import make_certificates

NOBODY = 65_534


@asynccontextmanager
async def behind_tls(socket: str, certificate: Path, key: Path) -> AsyncIterator[int]:
    """The port of a server that ends TLS before a store's socket."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(copy(reader, outer), copy(inner, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def parts_of(url: str) -> tuple[str, str]:
    """Password and socket of a private store's URL."""
    password, _, socket = url.removeprefix("unix://:").partition("@")
    return password, socket.partition("?")[0]


def start_scheduler(url: str) -> subprocess.CompletedProcess[str]:
    """Run a service that cannot start, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "services.scheduler", "--service-id", "s"],
        env={**os.environ, "HEADWAY_STORE": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("password", ["", ":wrong@"])
async def test_a_lease_is_not_taken_without_the_password(password: str, cluster: str) -> None:
    with LocalStore() as server:
        right = await Store.connect(server.url, cluster)
        assert await right.acquire_leader("rightful", "127.0.0.1:2", 60.0) is not None
        _, socket = parts_of(server.url)
        url = f"unix://{password}{socket}?db=0"
        with pytest.raises(HeadwayError, match="refuses the password") as refused:
            await Store.connect(url, cluster, patience=60.0)
        assert refused.value.code is Code.FAILED_PRECONDITION
        async with redis.from_url(url) as client:
            with pytest.raises(redis.RedisError):
                await client.set(f"headway:{cluster}:leader", "9|thief|127.0.0.1:1")
            with pytest.raises(redis.RedisError):
                await client.flushall()
        leader = await right.leader()
        assert leader is not None
        assert leader.candidate_id == "rightful"
        await right.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_does_not_even_reach_the_socket() -> None:
    with LocalStore() as server:
        _, socket = parts_of(server.url)
        command = ["/bin/sh", "-c", f"ls -l {socket}"]
        allowed = subprocess.run(command, capture_output=True, text=True, check=True)
        assert allowed.stdout.startswith("srwx------")
        refused = subprocess.run(
            command, user=NOBODY, group=NOBODY, capture_output=True, text=True, check=False
        )
        assert "Permission denied" in refused.stderr


async def test_a_service_with_a_wrong_password_says_so_and_ends_at_once(tmp_path: Path) -> None:
    with LocalStore() as server:
        _, socket = parts_of(server.url)
        done = await asyncio.to_thread(start_scheduler, f"unix://:mistyped@{socket}?db=0")
    assert done.returncode == 2
    assert "refuses the password" in done.stdout
    assert "mistyped" not in done.stdout + done.stderr


async def test_a_store_behind_tls_is_reached_if_its_authority_is_trusted(
    tmp_path: Path, cluster: str
) -> None:
    files = make_certificates(tmp_path, ServiceRole.WORKER, name="store")
    other = make_certificates(tmp_path / "other", ServiceRole.WORKER, name="store")
    with LocalStore() as server:
        password, socket = parts_of(server.url)
        async with behind_tls(socket, files["tls_cert"], files["tls_key"]) as port:
            url = f"rediss://:{password}@127.0.0.1:{port}/0?ssl_ca_certs="
            store = await Store.connect(f"{url}{files['tls_ca']}", cluster)
            assert await store.acquire_leader("one", "127.0.0.1:1", 60.0) is not None
            await store.close()
            with pytest.raises(HeadwayError, match="not trusted") as refused:
                await Store.connect(f"{url}{other['tls_ca']}", cluster, patience=60.0)
            assert refused.value.code is Code.FAILED_PRECONDITION
            done = await asyncio.to_thread(start_scheduler, f"{url}{other['tls_ca']}")
    assert done.returncode == 2
    assert "ssl_ca_certs=FILE" in done.stdout
    assert password not in done.stdout + done.stderr


async def test_a_store_of_another_name_is_not_trusted(tmp_path: Path, cluster: str) -> None:
    files = make_certificates(tmp_path, ServiceRole.WORKER, name="store")
    with LocalStore() as server:
        password, socket = parts_of(server.url)
        async with behind_tls(socket, files["tls_cert"], files["tls_key"]) as port:
            url = f"rediss://:{password}@127.0.0.2:{port}/0?ssl_ca_certs={files['tls_ca']}"
            server_name = url.replace("127.0.0.2", "127.1")  # the same address by another name
            with pytest.raises(HeadwayError, match="not trusted"):
                await Store.connect(server_name, cluster, patience=60.0)
