"""TLS over the wire: who dribbles, falls silent or shows a wrong certificate holds no port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.local.certificates import issue
from services.runtime import server as runtime_server
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole, server_name
from services.runtime.server import GrpcServer
from tests.fakes.certificates import make_certificates

Files = Mapping[str, Any]
Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FEW = 6
SERVER_NAME = server_name("default", ServiceRole.GATEWAY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ours"


@pytest.fixture
def files(folder: Path) -> Files:
    """A gateway's own."""
    return make_certificates(folder, ServiceRole.GATEWAY)


def trusting(server: Files, own: Files | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=server["tls_ca"])
    context.set_alpn_protocols(["h2"])
    if own:
        context.load_cert_chain(own["tls_cert"], own["tls_key"])
    return context


def client_hello(server: Files) -> bytes:
    outgoing = ssl.MemoryBIO()
    side = trusting(server, None).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=SERVER_NAME)
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


async def silent(host: str, port: int, server: Files, own: Files) -> Socket:
    return await asyncio.open_connection(host, port)


async def hello_alone(host: str, port: int, server: Files, own: Files) -> Socket:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(client_hello(server))
    return reader, writer


async def dribbling(host: str, port: int, server: Files, own: Files) -> Socket:
    reader, writer = await asyncio.open_connection(host, port)
    loop = asyncio.get_running_loop()

    def dribble(rest: bytes) -> None:
        if len(rest) > 1 and not writer.is_closing():
            writer.write(rest[:1])
            loop.call_later(0.05, dribble, rest[1:])

    dribble(client_hello(server))
    return reader, writer


async def shaken_and_silent(host: str, port: int, server: Files, own: Files) -> Socket:
    context = trusting(server, own)
    return await asyncio.open_connection(host, port, ssl=context, server_hostname=SERVER_NAME)


SLOW: tuple[Callable[[str, int, Files, Files], Awaitable[Socket]], ...] = (
    silent,
    hello_alone,
    dribbling,
    shaken_and_silent,
)


def caller(folder: Path, for_clients: bool, days: int = 2) -> Files:
    role = ServiceRole.CLIENT if for_clients else ServiceRole.WORKER
    return issue(folder, role, f"{role}-{days}", days=days)


def credentials_of(files: Files) -> grpc.ChannelCredentials:
    names = ("tls_ca", "tls_key", "tls_cert")
    return grpc.ssl_channel_credentials(*(Path(files[name]).read_bytes() for name in names))


async def status_of(address: str, files: Files) -> int:
    options = (("grpc.ssl_target_name_override", SERVER_NAME),)
    async with grpc.aio.secure_channel(address, credentials_of(files), options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)).status)


@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.__name__)
@pytest.mark.parametrize("for_clients", [True, False], ids=["clients", "peers"])
async def test_slow_handshakes_end_and_never_take_more_than_their_places(
    slow: Callable[[str, int, Files, Files], Awaitable[Socket]],
    for_clients: bool,
    folder: Path,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = ("grpc.server_handshake_timeout_ms", "grpc.http2.settings_timeout")
    options = dict(runtime_server._OPTIONS) | dict.fromkeys(waits, 1000)
    monkeypatch.setattr(runtime_server, "_OPTIONS", tuple(options.items()))
    bound = "MOST_CLIENTS" if for_clients else "_MOST_PEERS"
    monkeypatch.setattr(runtime_server, bound, FEW)
    server = GrpcServer(ServiceConfig(service_id="g", **files), for_clients=for_clients)
    address = await server.start()
    await server.set_serving(True)
    host, _, port = address.rpartition(":")
    own = caller(folder, for_clients)
    async with asyncio.timeout(120):
        crowd = [await asyncio.open_connection(host, int(port)) for _ in range(FEW)]
        one_more, _ = await asyncio.open_connection(host, int(port))
        assert await one_more.read() == b"", "it is closed, and waits for nothing"
        for reader, _ in crowd:
            await ended(reader)
        crowd = [await slow(host, int(port), files, own) for _ in range(FEW - 1)]
        assert await status_of(address, own) == health_pb2.HealthCheckResponse.SERVING
        for reader, writer in crowd:
            await ended(reader)
            writer.close()
        assert await status_of(address, own) == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(4096):
            pass


@pytest.mark.parametrize("for_clients", [True, False], ids=["clients", "peers"])
async def test_an_expired_or_foreign_certificate_is_refused_in_the_handshake(
    for_clients: bool, tmp_path: Path, folder: Path, files: Files
) -> None:
    server = GrpcServer(ServiceConfig(service_id="g", **files), for_clients=for_clients)
    address = await server.start()
    await server.set_serving(True)
    foreign = make_certificates(tmp_path / "theirs", ServiceRole.CLIENT)
    other_port = caller(folder, not for_clients)
    assert await status_of(address, caller(folder, for_clients)) == 1
    for refused in (
        caller(folder, for_clients, days=0),
        {**foreign, "tls_ca": files["tls_ca"]},
        other_port,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await status_of(address, {**refused, "tls_ca": files["tls_ca"]})
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)
