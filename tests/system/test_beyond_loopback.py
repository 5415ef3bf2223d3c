"""A cluster that other machines reach: certificates by default, and what they keep out."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from protos import gateway_pb2, worker_pb2
from services.gateway.auth import key_line
from services.local.certificates import issue, keep_certificates
from services.local.cluster import CERTIFICATES
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.access import WHO_MAY_CALL
from services.runtime.identity.roles import ServiceRole
from services.runtime.identity.tls_files import tls_options
from tests.fakes.local_cluster import MODEL, LocalCluster, local_cluster, until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

KEY = "hw-one-client"
HEALTH = "/grpc.health.v1.Health/Check"
CLOSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def own_address() -> str:
    """An address of this machine that others may reach; another one of loopback without any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


@dataclass(frozen=True)
class Reachable:
    """A running cluster, and the folders of its certificates and of a stranger's."""

    cluster: LocalCluster
    certs: Path
    strange: Path
    store_url: str

    def addresses(self) -> Mapping[ServiceRole, str]:
        """Where each service takes calls of others."""
        found = self.cluster.supervisor.processes
        return {ServiceRole(each.spec.service): each.address for each in found}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    store_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Reachable]:
    folder: Path = tmp_path_factory.mktemp("run")
    keys, host = folder / "keys", own_address()
    keys.write_text(key_line("ann", KEY))
    keys.chmod(0o600)
    flags = ["--host", host, "--listen", host, "--api-key-file", str(keys), "--decode", "1"]
    if host.startswith("127."):
        flags += ["--certs", str(folder / CERTIFICATES)]
    keep_certificates(folder / "strange", cluster="reached")
    async with local_cluster(store_url, "reached", folder, *flags) as found:
        yield Reachable(found, folder / CERTIFICATES, folder / "strange", store_url)


def config_of(place: Path) -> ServiceConfig:
    """A caller with the certificate in a folder."""
    return ServiceConfig(cluster="reached", **tls_options(place))  # type: ignore[arg-type]


async def code_of(
    channel: grpc.aio.Channel, method: str, first: bytes = b"", *, connects: bool = False
) -> tuple[Any, str]:
    """How a call ends, and what is said. One that ``connects`` waits for a busy server.

    The call hands all that it sends to gRPC at once: a refusal cannot come between two parts.
    """
    shape: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
    call: Any = shape(first, timeout=60, wait_for_ready=connects)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    finally:
        call.cancel()
    return grpc.StatusCode.OK, ""


async def chat(running: Reachable, key: str = KEY, max_tokens: int = 24) -> httpx.Response:
    body = {
        "model": "headway-mini",
        "max_tokens": max_tokens,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Add 17, 25, 8."}],
    }
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=running.cluster.base_url, timeout=300) as client:
        return await client.post("/v1/chat/completions", json=body, headers=headers)


async def test_a_client_with_a_key_is_served_and_one_without_is_not(running: Reachable) -> None:
    answered = await chat(running)
    assert answered.status_code == 200
    assert answered.json()["usage"]["completion_tokens"] == 24
    assert (await chat(running, "hw-guessed")).status_code == 401
    assert own_address() in running.cluster.base_url


async def test_no_service_takes_plaintext_or_a_strangers_certificate(running: Reachable) -> None:
    client = config_of(running.certs / "client")
    addresses = running.addresses()
    assert set(addresses) >= {
        *(ServiceRole.GATEWAY, ServiceRole.SCHEDULER, ServiceRole.WORKER),
        *(ServiceRole.PREDICTOR, ServiceRole.AUTOSCALER),
    }
    for role, address in addresses.items():
        assert address.startswith(own_address())
        stranger = config_of(running.strange / "scheduler")
        async with (
            grpc.aio.insecure_channel(address) as plaintext,
            open_channel(address, client, role) as of_a_client,
            open_channel(address, stranger, role) as of_another_authority,
            open_channel(address, config_of(running.certs / "operator"), role) as known,
        ):
            for channel in (plaintext, of_a_client, of_another_authority):
                assert (await code_of(channel, HEALTH))[0] in CLOSED
            assert (await code_of(known, HEALTH))[0] is grpc.StatusCode.OK


async def test_kv_is_neither_pushed_nor_fetched_but_by_its_roles(running: Reachable) -> None:
    address = running.cluster.process("decode-1").address
    header = worker_pb2.KvChunk(header=worker_pb2.KvHeader()).SerializeToString()
    methods = ("/headway.v1.Worker/TransferKv", "/headway.v1.Worker/Control")
    for role in ServiceRole:
        if role is ServiceRole.CLIENT:
            continue
        config = config_of(running.certs / role)
        async with open_channel(address, config, ServiceRole.WORKER) as channel:
            for method in methods:
                code, said = await code_of(channel, method, header, connects=True)
                if role in WHO_MAY_CALL[method]:
                    assert code is not grpc.StatusCode.PERMISSION_DENIED
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED
                    assert f"{role} {role} may not call {method}" in said


async def attach(address: str, config: ServiceConfig, worker_id: str) -> tuple[Any, str]:
    """How a stream of tokens ends that somebody opens in a worker's name."""
    packed = gateway_pb2.TokenBatch(worker_id=worker_id).SerializeToString()
    async with open_channel(address, config, ServiceRole.GATEWAY) as channel:
        return await code_of(channel, "/headway.v1.TokenSink/Attach", packed, connects=True)


async def test_nobody_speaks_for_a_worker_that_is_not_he(running: Reachable) -> None:
    address = running.cluster.process("gateway").address
    answering = asyncio.create_task(chat(running, max_tokens=400))
    await until(lambda: _has_attached(running))
    issue(running.certs, ServiceRole.WORKER, "thief", cluster="reached")
    for place in ("thief", "worker", "predictor"):
        code, said = await attach(address, config_of(running.certs / place), "decode-1")
        assert code is grpc.StatusCode.PERMISSION_DENIED, (place, code, said)
        if place == "thief":
            assert "'decode-1'; its certificate names worker thief" in said
    answered = (await answering).json()
    assert answered["choices"][0]["finish_reason"] in ("stop", "length")
    assert (await chat(running, max_tokens=400)).json()["choices"] == answered["choices"]


async def _has_attached(running: Reachable) -> bool:
    return "worker_attached" in running.cluster.log_of("gateway")


async def test_a_worker_joins_with_copied_certificates(running: Reachable, tmp_path: Path) -> None:
    """As on a second machine: without the authority, in a folder of its own."""
    issue(running.certs, ServiceRole.WORKER, "decode-9", cluster="reached")
    copied = shutil.copytree(running.certs / "decode-9", tmp_path / "copied")
    files = tls_options(copied).items()
    tls = [text for name, path in files for text in (f"--{name.replace('_', '-')}", str(path))]
    log = (tmp_path / "decode-9.log").open("wb")
    joined = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.worker", "--role", "decode", "--service-id", "decode-9"),
        *("--listen", f"{own_address()}:0", "--cluster", "reached", "--model", MODEL, *tls),
        env={**os.environ, "HEADWAY_STORE": running.store_url},
        stdout=log,
        stderr=log,
    )
    try:
        await until(lambda: _is_member(running, "decode-9"))
        other = running.cluster.process("decode-1")
        await running.cluster.supervisor.remove(other)  # only the one that has joined decodes
        assert (await chat(running)).json()["usage"]["completion_tokens"] == 24
        assert [each.member_id for each in await running.cluster.workers()] == [
            *("decode-9", "prefill-1")
        ]
    finally:
        joined.terminate()
        await joined.wait()
        log.close()


async def _is_member(running: Reachable, name: str) -> bool:
    return name in [each.member_id for each in await running.cluster.workers()]
