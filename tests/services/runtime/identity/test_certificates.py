"""Certificates that are made here: their files, their renewal, and who is let in meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from cli import main
from headway.errors import HeadwayError
from services.local.certificates import days_left, issue, keep_certificates, make_authorities
from services.runtime.channel import Channels, cluster_secret
from services.runtime.config import ServiceConfig
from services.runtime.health import is_serving
from services.runtime.identity.roles import ServiceRole
from services.runtime.server import GrpcServer
from tests.fakes.certificates import make_certificates

WORKER, SCHEDULER = ServiceRole.WORKER, ServiceRole.SCHEDULER
HEALTH = "/grpc.health.v1.Health/Check"


def certified(folder: Path, role: ServiceRole) -> ServiceConfig:
    files: dict[str, Any] = {**make_certificates(folder, role, name=str(role))}
    return ServiceConfig(service_id="test", **files)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_authorities(tmp_path)
    issue(tmp_path, ServiceRole.GATEWAY, "gw", hosts=["api.example", "10.0.0.1"])
    expected = {"key.pem": 0o600, "cert.pem": 0o644, "ca.pem": 0o644, "clients.pem": 0o644}
    assert modes(tmp_path / "gw") == expected
    assert modes(tmp_path / "authority")["peers.key"] == 0o600
    assert modes(tmp_path / "authority")["clients.key"] == 0o600


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_authorities(tmp_path)
    issue(tmp_path, WORKER, "w")
    before = (tmp_path / "w" / "key.pem").read_bytes()
    for repeat in (lambda: make_authorities(tmp_path), lambda: issue(tmp_path, WORKER, "w")):
        with pytest.raises(HeadwayError, match="is there: remove it first"):
            repeat()
    assert (tmp_path / "w" / "key.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../w", "a/b", "authority", ".new", "x" * 65])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    make_authorities(tmp_path)
    with pytest.raises(HeadwayError, match="name is"):
        issue(tmp_path, WORKER, name)


def test_the_command_makes_an_authority_and_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "certs")
    assert main(["certs", "init", folder]) == 0
    assert main(["certs", "issue", folder, "worker", "decode-1", "--days", "3"]) == 0
    assert "--tls-cert" in capsys.readouterr().out
    assert 2 < days_left(tmp_path / "certs" / "decode-1" / "cert.pem") < 3.01
    assert main(["certs", "init", folder]) == 1
    assert main(["certs", "issue", folder, "boss", "b"]) == 2
    assert "one of autoscaler, client" in capsys.readouterr().err


def test_all_makes_what_is_missing_and_renews_what_ends(tmp_path: Path) -> None:
    (tmp_path / "authority").mkdir()
    assert keep_certificates(tmp_path, days=30) == list(ServiceRole)
    assert keep_certificates(tmp_path, days=30) == []
    shutil.rmtree(tmp_path / "worker")
    assert keep_certificates(tmp_path, days=30) == ["worker"]
    assert keep_certificates(tmp_path, days=300) == list(ServiceRole)
    assert days_left(tmp_path / "worker" / "cert.pem") > 299
    assert sorted(modes(tmp_path / "worker")) == ["ca.pem", "cert.pem", "key.pem"]


def names_in(certificate: Path) -> set[str]:
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_a_certificate_that_lacks_a_host_or_the_cluster_is_issued_again(tmp_path: Path) -> None:
    gateway, hosts = tmp_path / "gateway" / "cert.pem", {ServiceRole.GATEWAY: ["a.example"]}
    keep_certificates(tmp_path, hosts=hosts)
    more = {ServiceRole.GATEWAY: ["10.0.0.5"]}
    assert keep_certificates(tmp_path, hosts=more) == ["gateway"]
    assert keep_certificates(tmp_path, hosts=hosts) == [], "it keeps the hosts that it has"
    assert {"a.example", "10.0.0.5", "gateway.default.headway"} <= names_in(gateway)
    assert keep_certificates(tmp_path, cluster="other", hosts=more) == list(ServiceRole)
    carried = names_in(gateway)
    assert {"spiffe://other/gateway/gateway", "gateway.other.headway", "a.example"} <= carried
    assert not any("default" in name for name in carried)


def test_copied_certificates_are_used_without_their_authority(tmp_path: Path) -> None:
    keep_certificates(tmp_path)
    shutil.rmtree(tmp_path / "authority")
    before = (tmp_path / "worker" / "cert.pem").read_bytes()
    assert keep_certificates(tmp_path, hosts={WORKER: ["b.example"]}, days=9999) == []
    assert (tmp_path / "worker" / "cert.pem").read_bytes() == before
    assert not (tmp_path / "authority").exists()
    shutil.rmtree(tmp_path / "worker")
    with pytest.raises(HeadwayError, match=r"peers\.key"):
        keep_certificates(tmp_path)


@pytest.mark.parametrize("file", ["tls_key", "cluster_secret_file"])
async def test_a_secret_that_everybody_may_read_is_refused(tmp_path: Path, file: str) -> None:
    if file == "tls_key":
        config = certified(tmp_path / "tls", WORKER)
        assert config.tls_key is not None
        path = config.tls_key
    else:
        path = tmp_path / "secret"
        config = ServiceConfig(service_id="test", cluster_secret_file=path)
        cluster_secret(config)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(HeadwayError, match=f"open to every user of the machine: chmod 600 {path}"):
        GrpcServer(config).bind()


def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for text in ("", "00", "not hexadecimal"):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(HeadwayError, match="holds no cluster secret"):
            cluster_secret(ServiceConfig(cluster_secret_file=path))


async def test_certificates_are_read_again_when_they_change(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    config, caller = certified(folder, WORKER), certified(folder, SCHEDULER)
    server = GrpcServer(config)
    address = await server.start()
    await server.set_serving(True)
    channels = Channels(caller, WORKER)
    first = channels.to(address)
    ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = first.unary_unary(HEALTH)
    await ask(b"", timeout=5)
    assert channels.to(address) is first
    assert await is_serving(address, caller, WORKER, within=5)

    other = tmp_path / "other"  # another authority takes over: no certificate of before counts
    for role in (WORKER, SCHEDULER):
        for path in make_certificates(other, role, name=str(role)).values():
            path.replace(folder / str(role) / path.name)
    async with asyncio.timeout(20):
        while not await is_serving(address, caller, WORKER, within=5):
            await asyncio.sleep(0.05)
    assert channels.to(address) is not first
    stranger = certified(tmp_path / "old", SCHEDULER)
    assert not await is_serving(address, stranger, WORKER, within=5)
    await channels.close()
    await server.stop(0)


async def test_files_that_do_not_fit_together_yet_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    config, caller = certified(folder, WORKER), certified(folder, SCHEDULER)
    server = GrpcServer(config)
    address = await server.start()
    await server.set_serving(True)
    assert config.tls_cert is not None
    config.tls_cert.write_text("half a certificate")
    assert await is_serving(address, caller, WORKER, within=5)
    config.tls_cert.unlink()
    assert await is_serving(address, caller, WORKER, within=5)
    await server.stop(0)
