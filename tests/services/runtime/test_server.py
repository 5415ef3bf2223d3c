"""gRPC servers and channels: health, reflection, mTLS, hung peers, and refusals at start."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headway.errors import HeadwayError
from protos import scheduler_pb2, scheduler_pb2_grpc
from services.runtime import server as runtime_server
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.server import GrpcServer
from tests.fakes.certificates import make_certificates

ROOT = Path(__file__).resolve().parents[3]


def config(**options: Any) -> ServiceConfig:
    return ServiceConfig(service_id="test", **options)


async def health_of(address: str, client: ServiceConfig) -> int:
    async with open_channel(address, client, ServiceRole.WORKER) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        return int(reply.status)


async def test_health_follows_serving() -> None:
    server = GrpcServer(config())
    address = await server.start()
    assert await health_of(address, config()) == health_pb2.HealthCheckResponse.NOT_SERVING
    await server.set_serving(True)
    assert await health_of(address, config()) == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


async def test_health_lists_every_service_to_whoever_may_check_it() -> None:
    server = GrpcServer(config())
    address = await server.start()
    await server.set_serving(True)
    async with open_channel(address, config(), ServiceRole.WORKER) as channel:
        listed = await health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest())
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    assert dict(listed.statuses) == {"": serving}
    await server.stop(0)


async def test_reflection_lists_services_where_it_is_turned_on() -> None:
    server = GrpcServer(config(grpc_reflection=True))
    address = await server.start()
    async with open_channel(address, config(), ServiceRole.WORKER) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        replies = stub.ServerReflectionInfo(asked)
        async for reply in replies:
            names = {service.name for service in reply.list_services_response.service}
            assert "grpc.health.v1.Health" in names
            break
    await server.stop(0)


async def streams_allowed(address: str) -> int:
    """How many streams a server lets one connection open, by its first SETTINGS (RFC 9113)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    async with asyncio.timeout(60):
        head = await reader.readexactly(9)
        settings = await reader.readexactly(int.from_bytes(head[:3], "big"))
    writer.close()
    assert head[3] == 4
    found = struct.iter_unpack(">HI", settings)
    return next((int(value) for name, value in found if name == 3), 2**32)


async def test_a_client_opens_only_so_many_streams_on_a_connection() -> None:
    server, internal = GrpcServer(config(), for_clients=True), GrpcServer(config())
    assert await streams_allowed(await server.start()) == 256
    assert await streams_allowed(await internal.start()) > 10_000, "gateways need one for each call"
    await server.stop(0)
    await internal.stop(0)


async def is_sent_away_for_pings(address: str) -> bool:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + ping)
    pongs = 0
    async with asyncio.timeout(60):
        while pongs < 8:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == 7:  # GOAWAY
                assert b"too_many_pings" in body
                break
            if head[3] == 6:
                pongs += 1
                writer.write(ping)
    writer.close()
    return pongs < 8


class Unread(scheduler_pb2_grpc.SchedulerServicer):
    """A scheduler that reads nothing before it is told to."""

    def __init__(self) -> None:
        self.may_read, self.num_read = asyncio.Event(), 0

    async def Connect(
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[scheduler_pb2.SchedulerMessage]:
        await self.may_read.wait()
        async for _ in request_iterator:
            self.num_read += 1
        yield scheduler_pb2.SchedulerMessage()

    async def Explain(self, request: Any, context: Any) -> Any:
        raise AssertionError("nobody asks")

    async def Picture(self, request: Any, context: Any) -> Any:
        raise AssertionError("nobody asks")


@pytest.mark.parametrize("reads_in_turn", [False, True])
async def test_what_a_scheduler_has_not_read_waits_at_its_gateway(
    reads_in_turn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte in small messages, and one message of a megabyte, which passes all the same."""
    monkeypatch.setattr(ServiceConfig, "reads_in_turn", reads_in_turn)
    server, unread = GrpcServer(config()), Unread()
    server.add(unread)
    address = await server.start()
    small, large = (
        scheduler_pb2.GatewayMessage(hello=scheduler_pb2.GatewayHello(gateway_id="g" * size))
        for size in (1000, 10**6)
    )
    async with open_channel(address, config(), ServiceRole.SCHEDULER) as channel:
        call = scheduler_pb2_grpc.SchedulerStub(channel).Connect()
        sending = asyncio.create_task(_send(call, [small] * 1000))
        if reads_in_turn:
            done, _ = await asyncio.wait([sending], timeout=1.0)
            assert not done
        else:
            await asyncio.wait_for(asyncio.shield(sending), 30)
        unread.may_read.set()
        await sending
        await call.write(large)
        await call.done_writing()
        await call.read()
    assert unread.num_read == 1001
    await server.stop(0)


async def _send(call: Any, messages: Sequence[Any]) -> None:
    for message in messages:
        await call.write(message)


async def test_a_client_alone_is_sent_away_if_it_pings_without_pause() -> None:
    server, internal = GrpcServer(config(), for_clients=True), GrpcServer(config())
    assert await is_sent_away_for_pings(await server.start())
    assert not await is_sent_away_for_pings(await internal.start())
    await server.stop(0)
    await internal.stop(0)


async def test_metadata_without_end_is_refused() -> None:
    server = GrpcServer(config(), for_clients=True)
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for size, is_taken in ((1000, True), (40_000, False)):
            call = stub.Check(
                health_pb2.HealthCheckRequest(), metadata=(("k", "v" * size),), timeout=60
            )
            assert ((await call.code()) is grpc.StatusCode.OK) is is_taken
    await server.stop(0)


@pytest.mark.parametrize(("bound", "for_clients"), [("MOST_CLIENTS", True), ("_MOST_PEERS", False)])
async def test_so_many_connect_and_others_are_closed_at_once(
    bound: str, for_clients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = 8
    monkeypatch.setattr(runtime_server, bound, few)
    server = GrpcServer(config(), for_clients=for_clients)
    address = await server.start()
    await server.set_serving(True)
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(60):
        crowd = [await asyncio.open_connection(host, int(port)) for _ in range(few + 4)]
        greetings = [await reader.read(1) for reader, _ in crowd]  # a server speaks first
        assert greetings.count(b"") == 4
        for _, writer in crowd:
            writer.close()
        while True:
            try:
                status = await health_of(address, config())
                break
            except grpc.aio.AioRpcError:  # their ends have not been noticed yet
                await asyncio.sleep(0.05)
    assert status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


@pytest.mark.parametrize("for_clients", [True, False])
async def test_a_caller_that_does_not_shake_hands_is_closed(
    for_clients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = ("grpc.server_handshake_timeout_ms", "grpc.http2.settings_timeout")
    assert [dict(runtime_server._OPTIONS)[name] for name in waits] == [10_000, 10_000]
    monkeypatch.setattr(runtime_server, "_OPTIONS", tuple((name, 200) for name in waits))
    server = GrpcServer(config(), for_clients=for_clients)
    host, _, port = (await server.start()).rpartition(":")
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port))
        while await reader.read(4096):
            pass
    writer.close()
    await server.stop(0)


async def test_a_taken_port_is_refused_not_shared() -> None:
    first = GrpcServer(config())
    address = await first.start()
    second = GrpcServer(config(listen=address))
    with pytest.raises(HeadwayError, match="--listen"):
        await second.start()
    await first.stop(0)


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:{port}"),
        ("127.0.0.1:0", "worker-3", "worker-3:{port}"),
        ("127.0.0.1:0", "worker-3:7000", "worker-3:7000"),
        ("0.0.0.0:0", "", socket.gethostname() + ":{port}"),
        ("0.0.0.0:0", "[fd00::1]", "[fd00::1]:{port}"),
    ],
)
async def test_others_are_told_an_address_that_they_can_reach(
    listen: str, advertise: str, expected: str
) -> None:
    server = GrpcServer(config(listen=listen, advertise=advertise, allow_plaintext=True))
    address = await server.start()
    assert address == expected.format(port=address.rpartition(":")[2])
    await server.stop(0)


async def test_listening_to_everybody_without_tls_has_to_be_allowed_and_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(HeadwayError, match=r"--tls-cert.*headway certs.*--allow-plaintext"):
        await GrpcServer(config(listen="0.0.0.0:0")).start()
    for listen in ("127.0.0.1:0", "0.0.0.0:0"):
        server = GrpcServer(config(listen=listen, allow_plaintext=True))
        await server.start()
        await server.stop(0)
        assert ("grpc_without_tls" in capsys.readouterr().out) is (listen == "0.0.0.0:0")


async def test_a_peer_that_hangs_is_noticed(store_url: str, cluster: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.tiny_service"),
        *("--store", store_url, "--cluster", cluster, "--log-format", "json"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(45):  # without the ping timeout it takes a minute
            address = str(json.loads(await process.stdout.readline())["address"])
            async with open_channel(address, config(), ServiceRole.WORKER) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(health_pb2.HealthCheckRequest())
                assert (await watch.read()).status is not None
                process.send_signal(signal.SIGSTOP)
                with pytest.raises(grpc.aio.AioRpcError) as broken:
                    await watch.read()
                assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        process.kill()
        await process.wait()


async def test_mtls_lets_in_only_who_has_a_certificate_of_the_authority(tmp_path: Path) -> None:
    secured = config(**make_certificates(tmp_path / "ours"))
    others = make_certificates(tmp_path / "others")
    server = GrpcServer(secured)
    address = await server.start()
    await server.set_serving(True)
    assert await health_of(address, secured) == health_pb2.HealthCheckResponse.SERVING
    impostor = config(**{**others, "tls_ca": secured.tls_ca})
    misled = config(**{**others, "tls_cert": secured.tls_cert, "tls_key": secured.tls_key})
    for client in (config(), impostor, misled):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_of(address, client)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


async def test_certificates_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    files = {"tls_ca": tmp_path / "ca.pem", "tls_cert": tmp_path, "tls_key": tmp_path / "key.pem"}
    with pytest.raises(HeadwayError, match=f"cannot read {tmp_path}"):
        await GrpcServer(config(**files)).start()
    with pytest.raises(HeadwayError, match=f"cannot read {tmp_path}"):
        open_channel("127.0.0.1:1", config(**files), ServiceRole.WORKER)


async def test_certificates_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("tls_ca", "tls_cert", "tls_key")}
    for path in files.values():
        path.write_text("not a certificate")
        path.chmod(0o600)
    with pytest.raises(HeadwayError, match="cannot listen"):
        await GrpcServer(config(**files)).start()
