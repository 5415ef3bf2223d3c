"""A gRPC server with health, keepalive and, where configured, mTLS and reflection."""

from __future__ import annotations

import socket
import sys

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headway.errors import Code, HeadwayError
from services.runtime.channel import KEEPALIVE, cluster_secret, tls_source
from services.runtime.config import ServiceConfig, is_loopback
from services.runtime.identity.guard import Guard, Identify, as_client, by_certificate, by_secret
from services.runtime.identity.tls_files import TlsSource, server_credentials
from services.runtime.logs import get_logger

_OPTIONS: tuple[tuple[str, int], ...] = (
    *KEEPALIVE,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.so_reuseport", 0),  # two servers on one port would share it silently
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a silent connection ends after it
    ("grpc.http2.settings_timeout", 10_000),
)
MOST_CLIENTS, _MOST_PEERS = 1024, 4096
"""Connections of gRPC clients, and of services; one more is closed at once."""
_PEER_OPTIONS = (("grpc.http2.max_ping_strikes", 0),)
_READ_IN_TURN = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 8192))
"""A peer's next messages wait on its side: what gRPC has taken is read in the order it came."""
_CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_connection_idle_ms", 60_000),  # a client that asks again connects again
    ("grpc.max_concurrent_streams", 256),  # of a connection; a client's further calls wait
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16_384),
)
"""Bounds for callers that are not trusted: by itself gRPC has next to none."""


class _Health(health.aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """gRPC's health service, with the method that its asyncio version lacks."""

    async def List(  # noqa: N802 (the protocol's name)
        self, request: health_pb2.HealthListRequest, context: object
    ) -> health_pb2.HealthListResponse:
        """Return the status of every service here."""
        statuses = {
            name: health_pb2.HealthCheckResponse(status=status)
            for name, status in self._server_status.items()
        }
        return health_pb2.HealthListResponse(statuses=statuses)


class GrpcServer:
    """Add servicers, then start; health is SERVING while the process serves and is ready.

    Every call is checked by a ``Guard``, which answers its HeadwayErrors, too. ``for_clients``: the
    server of the gateway's clients; any other is for the services of the cluster alone.
    """

    def __init__(self, config: ServiceConfig, *, for_clients: bool = False) -> None:
        self._config = config
        self._for_clients = for_clients
        self._tls = tls_source(config, for_clients=for_clients)
        self._port = ""
        guard = Guard(self._identify())
        most = (
            "grpc.max_allowed_incoming_connections",
            MOST_CLIENTS if for_clients else _MOST_PEERS,
        )
        # Of an option that is given twice the first one counts.
        options = (*_OPTIONS, most, *(_CLIENT_OPTIONS if for_clients else _PEER_OPTIONS))
        options = (*options, *(_READ_IN_TURN if config.reads_in_turn else ()))
        self._server = grpc.aio.server(options=options, interceptors=(guard,))
        self._health = _Health()
        self._serving, self._ready = False, True
        self._names: list[str] = []
        self._address = ""

    def add(self, servicer: object) -> None:
        """Register an object for each generated ``…Servicer`` that its class derives from."""
        for base in type(servicer).__mro__:
            if base.__module__.endswith("_pb2_grpc"):
                stubs = sys.modules[base.__module__]
                getattr(stubs, f"add_{base.__name__}_to_server")(servicer, self._server)
                services = sys.modules[base.__module__.removesuffix("_grpc")].DESCRIPTOR
                name = base.__name__.removesuffix("Servicer")
                self._names.append(services.services_by_name[name].full_name)

    def add_generic(self, handler: grpc.GenericRpcHandler) -> None:
        """Register a handler that finds methods by their names."""
        self._server.add_generic_rpc_handlers((handler,))

    def bind(self) -> str:
        """Take the port; return the address that others use. UNAVAILABLE where it is taken.

        Beyond this machine only where ``listen`` says so, and without TLS not silently.
        """
        if not self._address:
            self._address = self._advertised(self._bind())
        return self._address

    async def start(self) -> str:
        """Listen; return the address that others use."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self.set_serving(False)
        if self._config.grpc_reflection:
            names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        address = self.bind()
        await self._server.start()
        return address

    def _identify(self) -> Identify:
        """Return what says who calls."""
        config, for_clients = self._config, self._for_clients
        if self._tls is None:
            secret = cluster_secret(config)
            return by_secret(secret, self._ports, for_clients=for_clients)
        if for_clients and config.tls_client_ca is not None:
            return as_client
        return by_certificate(config.cluster)

    def _ports(self) -> tuple[str, str]:
        return self._port, self._address.rpartition(":")[2]

    def _bind(self) -> int:
        listen = self._config.listen
        if self._tls is None and not is_loopback(listen):
            self._refuse_plaintext(listen)
        try:
            port = self._take_port(listen, self._tls)
        except RuntimeError as error:
            message = f"cannot listen on {listen} ({error}): choose another with --listen"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
        self._port = str(port)
        return port

    def _take_port(self, listen: str, tls: TlsSource | None) -> int:
        if tls is None:
            return self._server.add_insecure_port(listen)
        return self._server.add_secure_port(listen, server_credentials(tls))

    def _refuse_plaintext(self, listen: str) -> None:
        """Raise FAILED_PRECONDITION unless the configuration allows it; then log it."""
        if not (self._for_clients or self._config.allow_plaintext):
            message = (
                f"listen is {listen}, beyond this machine, and there are no certificates: give "
                "--tls-cert, --tls-key and --tls-ca (`headway certs` makes them), listen on "
                "loopback, or allow it with --allow-plaintext"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        get_logger().warning(
            "grpc_without_tls", listen=listen, way_out="give --tls-cert, --tls-key, --tls-ca"
        )

    def _advertised(self, port: int) -> str:
        host = self._config.advertise or _reachable(self._config.listen.rpartition(":")[0])
        return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"

    async def set_serving(self, serving: bool) -> None:
        """Set what health checks report of this process: whether it takes calls."""
        self._serving = serving
        await self._report()

    async def set_ready(self, ready: bool) -> None:
        """Set whether what a call needs of other services is there; it is until told otherwise."""
        if ready != self._ready:
            self._ready = ready
            await self._report()

    async def _report(self) -> None:
        serving_status = health_pb2.HealthCheckResponse.ServingStatus
        is_well = self._serving and self._ready
        status = serving_status.SERVING if is_well else serving_status.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace: float) -> None:
        """Refuse new calls; end the running ones after ``grace`` seconds."""
        await self._server.stop(grace)


def _reachable(host: str) -> str:
    """Return the bound host, or the machine's name if all addresses are bound."""
    return socket.gethostname() if host in ("0.0.0.0", "[::]") else host
