"""Certificates that do not serve are named: which peer, which file, and what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from headway.errors import HeadwayError
from protos import scheduler_pb2, scheduler_pb2_grpc
from services.local.certificates import issue
from services.local.store import free_port
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.identity.tls_faults import own_fault
from services.runtime.log_lines import LogLines
from services.runtime.server import GrpcServer
from services.runtime.service import start
from services.runtime.stream import Dialled, Outbox
from services.runtime.wire import dial_control
from services.scheduler.config import SchedulerConfig
from services.scheduler.gateway_link import GatewayLinks
from services.scheduler.service import build
from services.worker.config import WorkerConfig
from tests.fakes.certificates import make_certificates

Files = Mapping[str, Any]
PATIENCE = 0.4
"""Seconds for a connection: what is wrong with it is known long before they are over."""
RENEW = "is out of its days (certificate has expired): renew it with `headway certs all DIR`"


@pytest.fixture
def ours(tmp_path: Path) -> Files:
    return make_certificates(tmp_path / "ours")


@pytest.fixture
def strangers(tmp_path: Path, ours: Files) -> Files:
    """A stranger's certificate, held by who trusts our authority."""
    return {**make_certificates(tmp_path / "others"), "tls_ca": ours["tls_ca"]}


@pytest.fixture
def expired(tmp_path: Path, ours: Files) -> Files:
    return {**issue(tmp_path / "ours", ServiceRole.WORKER, "old", days=0)}


def worker(files: Files) -> WorkerConfig:
    return WorkerConfig(service_id="w", model="m", **files)


def test_a_service_finds_faults_of_its_own_certificate(
    tmp_path: Path, ours: Files, strangers: Files, expired: Files
) -> None:
    assert own_fault(worker(ours)) == own_fault(worker({})) == ""
    assert own_fault(worker(expired)) == f"our certificate {expired['tls_cert']} {RENEW}"
    fault = own_fault(worker(strangers))
    assert f"{strangers['tls_cert']} is not of an authority in {ours['tls_ca']} (" in fault
    assert fault.endswith("issue it with one of these, or add its authority to the file")
    fault = own_fault(SchedulerConfig(**ours))
    assert f"{ours['tls_cert']} does not name scheduler.default.headway (" in fault
    fault = own_fault(worker({**ours, "tls_key": strangers["tls_key"]}))
    assert f"{strangers['tls_key']} and the authority {ours['tls_ca']} do not fit" in fault
    assert "do not fit" in own_fault(worker({**ours, "tls_cert": tmp_path / "none"}))


async def test_a_service_with_such_a_certificate_does_not_start(
    ours: Files, store_url: str, cluster: str
) -> None:
    config = SchedulerConfig(store=store_url, cluster=cluster, **ours)
    async with AsyncExitStack() as undo:
        with pytest.raises(HeadwayError, match=r"our certificate .*cert\.pem does not name"):
            await start(config, build, undo, LogLines(None))


def dialled(config: ServiceConfig, role: ServiceRole) -> Dialled[Any]:
    ignored = (lambda _: None, lambda _: None)
    return Dialled(config, role, dial_control, *ignored, connect_timeout=PATIENCE)


async def reason_of(caller: Files, server: Files, role: ServiceRole = ServiceRole.WORKER) -> str:
    """Why the caller's stream to the server ends; asked again where the machine was too slow."""
    listening = GrpcServer(ServiceConfig(**server))
    address = await listening.start()
    config = ServiceConfig(**caller)
    stream = dialled(config, role)
    async with asyncio.timeout(180):
        while ":" not in (reason := await stream.once(address, Outbox())):
            pass
    await listening.stop(0)
    return reason


async def test_a_caller_says_what_is_wrong_with_the_servers_certificate(
    ours: Files, strangers: Files, expired: Files
) -> None:
    unreached = "it cannot be reached: its certificate "
    assert await reason_of(ours, expired) == unreached + RENEW
    assert f"{unreached}is not of an authority in {ours['tls_ca']}" in await reason_of(
        ours, strangers
    )
    named = await reason_of(ours, ours, ServiceRole.GATEWAY)
    assert f"{unreached}does not name gateway.default.headway" in named
    assert "it does not speak TLS as we do (WRONG_VERSION_NUMBER)" in await reason_of(ours, {})


async def test_a_caller_says_that_its_own_certificate_is_refused(
    ours: Files, strangers: Files, expired: Files
) -> None:
    for files in (strangers, expired):
        reason = await reason_of(files, ours)
        assert f"it refuses our certificate {files['tls_cert']}: see whether it has" in reason


async def test_nobody_at_an_address_is_no_fault_of_certificates(ours: Files) -> None:
    stream = dialled(ServiceConfig(**ours), ServiceRole.WORKER)
    assert await stream.once(f"127.0.0.1:{free_port()}", Outbox()) == "it cannot be reached"


async def test_a_server_names_each_peer_that_it_refuses(
    tmp_path: Path, ours: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    server = GrpcServer(ServiceConfig(**ours))
    server.add(GatewayLinks(str, time.time))
    address = await server.start()
    for role in (ServiceRole.PREDICTOR, ServiceRole.WORKER):
        files: Files = make_certificates(tmp_path / "ours", role, name=f"{role}-7")
        config = ServiceConfig(**files)
        async with open_channel(address, config, ServiceRole.WORKER) as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            request = scheduler_pb2.ExplainRequest()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Explain(request, timeout=60, wait_for_ready=True)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await server.stop(0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "call_refused" in line]
    for name, line in zip(("predictor predictor-7", "worker worker-7"), lines, strict=True):
        assert f"{name} may not call /headway.v1.Scheduler/Explain: gateway, operator may" in line
        assert "ipv4:127.0.0.1:" in line
