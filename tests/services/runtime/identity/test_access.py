"""Who may call what: the table, and a guarded server that asks it before every call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

import protos
from headway.errors import Code, HeadwayError
from proof.chaos.proxy import Proxy, Rules
from services.local import certificates
from services.local.store import free_port
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.access import WHO_MAY_CALL, require_access
from services.runtime.identity.guard import as_client, by_certificate
from services.runtime.identity.roles import Caller, ServiceRole, read_spiffe_id, spiffe_id
from services.runtime.server import GrpcServer
from tests.fakes.certificates import make_certificates

ROLES = list(ServiceRole)


def descriptors() -> list[FileDescriptor]:
    stubs = sorted(Path(protos.__path__[0]).glob("*_pb2.py"))
    modules = [__import__(f"protos.{path.stem}", fromlist=["DESCRIPTOR"]) for path in stubs]
    assert len(modules) >= 9
    return [module.DESCRIPTOR for module in (*modules, health_pb2, reflection_pb2)]


METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in descriptors()
    for service in file.services_by_name.values()
    for method in service.methods
}


def test_every_method_of_every_service_is_in_the_table_and_nothing_else() -> None:
    assert sorted(METHODS) == sorted(WHO_MAY_CALL)
    assert all(WHO_MAY_CALL.values())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("method", sorted(WHO_MAY_CALL))
def test_a_role_may_call_what_the_table_says(method: str, role: ServiceRole) -> None:
    caller = Caller(f"{role} x", frozenset({role}))
    if role in WHO_MAY_CALL[method]:
        require_access(caller, method)
        return
    with pytest.raises(HeadwayError) as denied:
        require_access(caller, method)
    assert denied.value.code is Code.PERMISSION_DENIED
    assert f"{role} x may not call {method}" in denied.value.message
    assert all(allowed in denied.value.message for allowed in WHO_MAY_CALL[method])


def test_a_client_may_generate_infer_ask_for_health_and_nothing_else() -> None:
    allowed = {method for method, roles in WHO_MAY_CALL.items() if ServiceRole.CLIENT in roles}
    services = {method.rpartition("/")[0] for method in allowed if "/grpc." not in method}
    assert services == {"/headway.v1.Gateway", "/inference.GRPCInferenceService"}


def test_a_method_that_is_not_in_the_table_is_for_nobody() -> None:
    with pytest.raises(HeadwayError, match="nobody may"):
        require_access(Caller("anyone", frozenset(ROLES)), "/headway.v1.Worker/New")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://other/worker/w",
        "spiffe://default/worker",
        "spiffe://default/worker/",
        "spiffe://default/boss/w",
        "https://default/worker/w",
        "spiffe://default.evil/worker/w",
    ],
)
def test_a_certificate_that_names_no_role_of_this_cluster_is_refused(uri: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        read_spiffe_id(uri, "default")
    assert refused.value.code is Code.PERMISSION_DENIED
    assert "spiffe://default/ROLE/NAME" in refused.value.message


def test_a_certificate_names_its_process() -> None:
    uri = spiffe_id("default", ServiceRole.WORKER, "decode-1")
    named = Caller("worker decode-1", frozenset({ServiceRole.WORKER}))
    assert read_spiffe_id(uri, "default") == named


class EveryMethod(grpc.GenericRpcHandler):
    """All methods of all services; each of them answers, and counts."""

    def __init__(self) -> None:
        self.num_answered = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = METHODS.get(str(handler_call_details.method))
        if method is None:
            return None
        names = {True: "stream", False: "unary"}
        kind = f"{names[method.client_streaming]}_{names[method.server_streaming]}"
        behaviour: Any = self._stream if method.server_streaming else self._answer
        return getattr(grpc, f"{kind}_rpc_method_handler")(behaviour)

    async def _answer(self, request: Any, context: Any) -> bytes:
        self.num_answered += 1
        return b""

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        self.num_answered += 1
        yield b""


async def code_of(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """How a call ends; all that it sends goes at once: no refusal can come between two parts."""
    shape = METHODS[method]
    kind = "unary_stream" if shape.server_streaming else "unary_unary"
    call: Any = getattr(channel, kind)(method)(b"", timeout=30)
    try:
        if shape.server_streaming:
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # by our health service: let in
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def certified(folder: Path, role: ServiceRole, name: str = "", **options: Any) -> ServiceConfig:
    files: dict[str, Any] = {**make_certificates(folder, role, name=name or str(role))}
    return ServiceConfig(**files, **options)


async def served(config: ServiceConfig) -> tuple[GrpcServer, EveryMethod, str]:
    server, every = GrpcServer(config), EveryMethod()
    server.add_generic(every)
    return server, every, await server.start()


async def test_a_stranger_without_the_secret_may_call_nothing(tmp_path: Path) -> None:
    server, every, address = await served(ServiceConfig(cluster_secret_file=tmp_path / "ours"))
    other = ServiceConfig(cluster_secret_file=tmp_path / "other")
    async with (
        grpc.aio.insecure_channel(address) as stranger,
        open_channel(address, other, ServiceRole.WORKER) as impostor,
    ):
        for method in WHO_MAY_CALL:
            for channel in (stranger, impostor):
                code, message = await code_of(channel, method)
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert "--cluster-secret-file" in message
    assert every.num_answered == 0
    await server.stop(0)


async def test_who_knows_the_secret_may_call_everything(tmp_path: Path) -> None:
    config = ServiceConfig(cluster_secret_file=tmp_path / "secret")
    server, _, address = await served(config)
    async with open_channel(address, config, ServiceRole.WORKER) as channel:
        for method in WHO_MAY_CALL:
            assert (await code_of(channel, method))[0] is grpc.StatusCode.OK
    await server.stop(0)


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_what_is_no_message_is_refused_behind_the_check_and_fills_no_log(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServiceConfig(cluster_secret_file=tmp_path / "secret")
    server = GrpcServer(config)
    address = await server.start()
    async with (
        grpc.aio.insecure_channel(address) as stranger,
        open_channel(address, config, ServiceRole.WORKER) as peer,
    ):
        for channel, code in (
            (stranger, grpc.StatusCode.UNAUTHENTICATED),
            (peer, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            call: Any = channel.unary_unary(f"/grpc.health.v1.Health/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\xff\xff")
            assert refused.value.code() is code
    assert not caplog.records
    await server.stop(0)


async def test_a_stream_ends_at_what_is_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServiceConfig(cluster_secret_file=tmp_path / "secret", grpc_reflection=True)
    server = GrpcServer(config)
    address = await server.start()
    async with open_channel(address, config, ServiceRole.WORKER) as peer:
        call: Any = peer.stream_stream(f"/{reflection.SERVICE_NAME}/ServerReflectionInfo")()
        await call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records
    await server.stop(0)


@pytest.mark.parametrize("name", ["spiffe_id", "common_name"])
def test_a_certificate_whose_name_is_no_text_is_read_all_the_same(name: str) -> None:
    class Context:
        def auth_context(self) -> Any:
            key = {"spiffe_id": "peer_spiffe_id", "common_name": "x509_common_name"}[name]
            return {key: [b"spiffe://c/worker/\xff"]}

    context = cast("Any", Context())
    if name == "common_name":
        assert as_client(context).name == "client spiffe://c/worker/\ufffd"
    else:
        assert by_certificate("c")(context).roles == {ServiceRole.WORKER}


async def test_a_proof_for_the_advertised_port_opens_the_port_behind_it(tmp_path: Path) -> None:
    port = free_port(2)
    config = ServiceConfig(
        cluster_secret_file=tmp_path / "secret",
        listen=f"127.0.0.1:{port + 1}",
        advertise=f"127.0.0.1:{port}",
    )
    server, _, address = await served(config)
    proxy = Proxy("it", port, port + 1, Rules(), lambda local: "")
    await proxy.start()
    for called in (address, config.listen):
        async with open_channel(called, config, ServiceRole.SCHEDULER) as channel:
            code, _ = await code_of(channel, "/headway.v1.Worker/Control")
        assert code is grpc.StatusCode.OK
    await proxy.stop()
    await server.stop(0)


async def test_a_proof_for_one_port_opens_no_other(tmp_path: Path) -> None:
    config = ServiceConfig(cluster_secret_file=tmp_path / "secret")
    shown = list[str]()

    class Thief(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
        async def Check(self, request: Any, context: Any) -> Any:
            metadata = dict(context.invocation_metadata())
            shown.append(str(metadata["user-agent"]).partition(" ")[0])
            return health_pb2.HealthCheckResponse()

    thief = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Thief(), thief)
    port = thief.add_insecure_port("127.0.0.1:0")
    await thief.start()
    async with open_channel(f"127.0.0.1:{port}", config, ServiceRole.WORKER) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    server, _, address = await served(config)
    options = (("grpc.primary_user_agent", shown[0]),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        code, message = await code_of(channel, "/headway.v1.Worker/Control")
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "another secret" in message
    await server.stop(0)
    await thief.stop(0)


async def test_a_certificate_opens_what_its_role_may_call(tmp_path: Path) -> None:
    files = tmp_path / "tls"
    server, _, address = await served(certified(files, ServiceRole.WORKER))
    for role in ROLES:
        client = certified(files, role, f"a-{role}")
        async with open_channel(address, client, ServiceRole.WORKER) as channel:
            for method, allowed in WHO_MAY_CALL.items():
                code, message = await code_of(channel, method)
                if role is ServiceRole.CLIENT:  # of another authority: not even a connection
                    assert code is grpc.StatusCode.UNAVAILABLE
                elif role in allowed:
                    assert code is grpc.StatusCode.OK
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED, message
                    assert f"{role} a-{role} may not call {method}" in message
    await server.stop(0)


async def test_a_clients_certificate_is_a_client_whatever_it_says(tmp_path: Path) -> None:
    files = tmp_path / "tls"
    gateway = certified(files, ServiceRole.GATEWAY)
    server, every = GrpcServer(gateway, for_clients=True), EveryMethod()
    server.add_generic(every)
    address = await server.start()
    client = certified(files, ServiceRole.CLIENT, "worker")
    peer = certified(files, ServiceRole.WORKER, "w")
    async with open_channel(address, client, ServiceRole.GATEWAY) as channel:
        code, _ = await code_of(channel, "/headway.v1.Gateway/Generate")
        assert code is grpc.StatusCode.OK
        code, message = await code_of(channel, "/headway.v1.TokenSink/Attach")
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "client worker may not call" in message
    async with open_channel(address, peer, ServiceRole.GATEWAY) as channel:
        code, _ = await code_of(channel, "/headway.v1.TokenSink/Attach")
        assert code is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


async def test_a_certificate_with_two_roles_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, names = tmp_path / "tls", certificates._names
    server, _, address = await served(certified(files, ServiceRole.WORKER))

    def both(cluster: str, role: ServiceRole, name: str, hosts: Any) -> list[x509.GeneralName]:
        other = x509.UniformResourceIdentifier(spiffe_id(cluster, ServiceRole.SCHEDULER, name))
        return [*names(cluster, role, name, hosts), other]

    monkeypatch.setattr(certificates, "_names", both)
    double = certified(files, ServiceRole.OPERATOR, "double")
    async with open_channel(address, double, ServiceRole.WORKER) as channel:
        for method in ("/headway.v1.Worker/Control", "/headway.v1.Worker/SetRole"):
            code, message = await code_of(channel, method)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "'nobody'" in message
    await server.stop(0)


async def test_a_server_of_another_role_or_cluster_is_sent_nothing(tmp_path: Path) -> None:
    files = tmp_path / "tls"
    server, every, address = await served(certified(files, ServiceRole.WORKER))
    gateway: dict[str, Any] = {**make_certificates(files, ServiceRole.GATEWAY, name="gateway")}
    for cluster, role in (("default", ServiceRole.SCHEDULER), ("other", ServiceRole.WORKER)):
        config = ServiceConfig(cluster=cluster, **gateway)
        async with open_channel(address, config, role) as channel:
            code, _ = await code_of(channel, "/grpc.health.v1.Health/Check")
            assert code is grpc.StatusCode.UNAVAILABLE
    assert every.num_answered == 0
    await server.stop(0)


async def test_without_certificates_a_caller_of_the_clients_port_is_a_client() -> None:
    server = GrpcServer(ServiceConfig(), for_clients=True)
    server.add_generic(EveryMethod())
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        for method, allowed in WHO_MAY_CALL.items():
            code, _ = await code_of(channel, method)
            is_allowed = ServiceRole.CLIENT in allowed
            expected = grpc.StatusCode.OK if is_allowed else grpc.StatusCode.PERMISSION_DENIED
            assert code is expected
    await server.stop(0)
