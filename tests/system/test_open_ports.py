"""What a running cluster opens to another user of the machine: its ports, tried one by one."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cli import up
from services.local.cluster import LocalCluster
from services.local.run_file import SECRET_FILE
from services.local.store import free_port
from services.runtime.identity.access import WHO_MAY_CALL
from tests.fakes.local_cluster import MODEL, START_PATIENCE

pytestmark = pytest.mark.system

_LISTENS = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def listening(pids: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the address (as the kernel writes it) and port of each listening TCP socket."""
    sockets = {
        str(link.readlink())
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink()
    }
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                host, _, port = fields[1].partition(":")
                yield host, int(port, 16)


async def code_of(channel: grpc.aio.Channel, method: str) -> grpc.StatusCode | None:
    """How a stranger's call ends; None for a call that was taken.

    A unary call hands all of itself to gRPC at once: a refusal cannot come between two parts.
    """
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    try:
        await call(b"", timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def test_all_ports_are_loopback_and_refuse_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_CLUSTER_SECRET_FILE")
    port = free_port(2)
    few = ("--prefill", "0", "--decode", "0", "--unified", "1")
    options = up.parse(["--model", MODEL, "--port", str(port), "--drain-timeout", "5", *few])
    cluster = LocalCluster(options, tmp_path, name="ports")
    try:
        async with asyncio.timeout(START_PATIENCE):
            await cluster.start()
        processes = cluster.supervisor.processes
        opened = set(listening({each.pid for each in processes if each.pid is not None}))
        assert {host for host, _ in opened} <= set(_LOOPBACK)
        store = next(each for each in processes if each.spec.service == "store")
        assert not list(listening({store.pid or 0})), "the store has a Unix socket alone"
        ports = {number for _, number in opened} - {port}  # HTTP
        addresses = [process.address for process in processes if process is not store]
        assert {port + 1, *(int(each.rpartition(":")[2]) for each in addresses)} <= ports
        await asyncio.gather(*(refuses(each, clients=each == port + 1) for each in ports))
        password = cluster.config.store.partition("unix://:")[2].partition("@")[0]
        assert len(password) == 64
        shows_nothing([process.pid or 0 for process in processes], tmp_path, password)
    finally:
        await cluster.stop()


async def refuses(port: int, *, clients: bool) -> None:
    """Check that no method of ours is a stranger's, but the clients' on their port."""
    theirs = ("/headway.v1.Gateway/", "/inference.", "/grpc.health") if clients else ()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        methods = [method for method in WHO_MAY_CALL if not method.startswith(theirs)]
        await asyncio.gather(*(refuses_a_call(channel, method, port) for method in methods))


async def refuses_a_call(channel: grpc.aio.Channel, method: str, port: int) -> None:
    code = await code_of(channel, method)
    refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
    assert code in refused, f"{method} at {port}: {code}"


def shows_nothing(pids: list[int], run_folder: Path, password: str) -> None:
    """Check that neither a command line nor a log holds the store's password or the secret."""
    secret = run_folder / SECRET_FILE
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    logs = [path.read_bytes() for path in run_folder.glob("*.log")]
    for hidden in (password.encode(), secret.read_bytes().strip()):
        assert not any(hidden in text for text in (*commands, *logs))
