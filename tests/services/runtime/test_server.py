"""gRPC servers: health, reflection, mTLS, and refusals at start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headway.errors import HeadwayError
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig, is_loopback, load_config
from services.runtime.server import GrpcServer


def config(**options: Any) -> ServiceConfig:
    return ServiceConfig(service_id="test", **options)


async def health_of(address: str, client: ServiceConfig) -> int:
    async with open_channel(address, client) as channel:
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


async def test_reflection_lists_services() -> None:
    server = GrpcServer(config())
    address = await server.start()
    async with open_channel(address, config()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        replies = stub.ServerReflectionInfo(asked)
        async for reply in replies:
            names = {service.name for service in reply.list_services_response.service}
            assert "grpc.health.v1.Health" in names
            break
    await server.stop(0)


async def test_a_taken_port_is_refused_not_shared() -> None:
    first = GrpcServer(config())
    address = await first.start()
    second = GrpcServer(config(listen=address))
    with pytest.raises(HeadwayError, match="--listen"):
        await second.start()
    await first.stop(0)


def make_certificates(folder: Path) -> dict[str, Path]:
    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    subject = ("-subj", "/CN=headway-test")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout",
            "ca.key", "-out", "ca.pem")  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", "key.pem", "-out", "csr")
    openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "extensions", "-out", "cert.pem")  # fmt: skip
    return {
        "tls_ca": folder / "ca.pem",
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
    }


async def test_mtls_lets_in_only_who_has_a_certificate(tmp_path: Path) -> None:
    secured = config(**make_certificates(tmp_path))
    server = GrpcServer(secured)
    address = await server.start()
    await server.set_serving(True)
    assert await health_of(address, secured) == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError):
        await health_of(address, config())
    await server.stop(0)


def test_half_a_tls_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_config(ServiceConfig, ["--tls-cert", "cert.pem"])
    assert "together" in capsys.readouterr().err


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CLUSTER", "from-environment")
    monkeypatch.setenv("HEADWAY_LOG_LEVEL", "debug")
    found = load_config(ServiceConfig, ["--cluster", "from-flag"])
    assert (found.cluster, found.log_level) == ("from-flag", "debug")


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("0.0.0.0:1", False)],
)
def test_loopback_is_recognised(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
