"""The picker's service: a core, its driver, its gRPC server, and a watcher for each endpoint."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import grpc
import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    EndpointStatus,
    PickAsked,
    PickAskedAtOnce,
    Responded,
)
from headway.errors import Code, HeadwayError
from headway.request import StreamKey
from services.endpoints.endpoints_file import EndpointEntry, entries_from
from services.endpoints.http_client import open_client
from services.endpoints.pool import Answer, EndpointPool
from services.picker.config import PickerConfig
from services.picker.ext_proc import Bodies, ExternalProcessor, HttpExchange
from services.picker.leadership import PickerLeadership
from services.picker.metrics import PickerMetrics
from services.picker.prompts import Prompts
from services.runtime.channel import KEEPALIVE, tls_source
from services.runtime.clock import Clock
from services.runtime.config import host_and_port, is_loopback
from services.runtime.essential import Ending, essential
from services.runtime.identity.guard import Guard
from services.runtime.identity.tls_files import server_credentials
from services.runtime.kubernetes import require_client
from services.runtime.logs import get_logger
from services.runtime.telemetry import ServiceMetrics, serve_metrics
from services.runtime.watchdog import watch_event_loop

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS, READINESS = "liveness", "readiness"
INLINE_BYTES, MOST_READ = 2**17, 2**23
"""Bytes of a body from which it is read in a thread, and to which it is read at all."""
_LOOK = 0.5
"""Seconds between looks at readiness and gauges."""
_STOP_GRACE = 1.0
_OPTIONS = (
    *KEEPALIVE,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 65_536),  # each is one HTTP request
    ("grpc.server.max_pending_requests", 65_536),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)
_DECODE = msgspec.json.Decoder().decode
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVING = health_pb2.HealthCheckResponse.SERVING


class PickerService:
    """The shell around ``PickerCore``."""

    def __init__(self, config: PickerConfig, registry: CollectorRegistry | None = None) -> None:
        self._config = config
        self._log = get_logger()
        self._clock = Clock()
        self._core = PickerCore(config.scheduler_settings(), config.picker_settings())
        self._core.keep_decisions(config.log_level == "debug")
        self._prompts = Prompts(config.service_classes(), config.model)
        self._metrics = PickerMetrics(registry or CollectorRegistry())
        self._read_entries()  # what is wrong with them is said at once
        self._pool: EndpointPool
        self._said: dict[str, tuple[str, str]] = {}
        self._health = health.aio.HealthServicer()
        self.bodies = Bodies(config.max_bodies)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="read")
        self._undo = AsyncExitStack()
        self.address = ""
        self.leadership: PickerLeadership | None = None
        """Its part among several pickers; None where it is alone, or all are asked."""
        self.num_answered = 0

    def _read_entries(self) -> Sequence[EndpointEntry]:
        config = self._config
        return entries_from(config.endpoints, config.endpoints_file, config.inference_pool)

    # --- its life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and begin to watch the endpoints."""
        config, undo = self._config, self._undo
        undo.callback(self._threads.shutdown, wait=False, cancel_futures=True)
        server = grpc.aio.server(options=_OPTIONS, interceptors=(Guard(None),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        processor = ExternalProcessor(
            self._ask, self._responded, self._ended, config.max_body, self.bodies
        )
        external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(processor, server)
        self.address = self._bind(server)
        client = await undo.enter_async_context(
            open_client(connector=aiohttp.TCPConnector(limit=0))
        )
        intervals = config.watch_intervals()
        self._pool = EndpointPool(self._core, self._read_entries, client, intervals, self._clock)
        undo.push_async_callback(self._pool.close)
        await self._look()
        await server.start()
        undo.push_async_callback(server.stop, _STOP_GRACE)
        undo.callback(essential(self._look_again(), "readiness").cancel)
        await self._pool.start()
        if config.leader_of:
            require_client("--leader-of")
            port = int(self.address.rpartition(":")[2])
            self.leadership = PickerLeadership(
                config.leader_of, config.service_id, config.advertise, port, self._clock.now
            )
            undo.push_async_callback(self.leadership.close)
        self._log.info("serving", address=self.address, num_endpoints=len(self.endpoints()))

    async def stop(self) -> None:
        """Say that it is no longer ready, let exchanges end, and let go of everything."""
        await self._health.enter_graceful_shutdown()
        await self._undo.aclose()

    def _bind(self, server: grpc.aio.Server) -> str:
        config, listen = self._config, self._config.listen
        tls = tls_source(config, for_clients=True)
        if tls is None and not is_loopback(listen) and not config.allow_plaintext:
            message = (
                f"listen is {listen}, beyond this machine and without certificates: give "
                "--tls-cert, --tls-key and --tls-ca, or --allow-plaintext"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="listen")
        try:
            if tls is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(
                    listen, server_credentials(tls, asks_callers=not config.any_gateway)
                )
        except RuntimeError as error:
            message = f"cannot listen on {listen} ({error}): choose another with --listen"
            raise HeadwayError(Code.UNAVAILABLE, message) from error
        return f"{host_and_port('listen', listen)[0]}:{port}"

    # --- exchanges --------------------------------------------------------------------

    async def _ask(self, number: int, exchange: HttpExchange) -> Answer:
        key, now = StreamKey(GATEWAY_ID, number), self._clock.now()
        read = partial(self._question, key, exchange, now)
        if INLINE_BYTES < len(exchange.body) <= MOST_READ:  # others are answered meanwhile
            question = await asyncio.get_running_loop().run_in_executor(self._threads, read)
        else:
            question = read()
        answer = await self._pool.ask(question, key)
        self.num_answered += 1
        self._metrics.answered(answer, self._clock.now() - now)
        return answer

    def _question(
        self, key: StreamKey, exchange: HttpExchange, now: float
    ) -> PickAsked | PickAskedAtOnce:
        try:
            is_read = 0 < len(exchange.body) <= MOST_READ
            body = _DECODE(exchange.body) if is_read else None
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return PickAskedAtOnce(key, exchange.among)
        name, pool = body.get("model"), self._pool
        # an adapter's model, or any other, is the first one
        model = name if isinstance(name, str) and name in pool.models else pool.first_model
        request = self._prompts.request_of(body, exchange.headers, key.stream_id, model, now)
        return PickAsked(request, exchange.among)

    def _responded(self, number: int, served: str, failed: bool) -> None:
        self._pool.post(Responded(StreamKey(GATEWAY_ID, number), served, failed))

    def _ended(self, number: int) -> None:
        self._pool.ended(StreamKey(GATEWAY_ID, number))

    @property
    def num_waiting(self) -> int:
        """Requests that are held."""
        return self._core.num_waiting

    def endpoints(self) -> list[EndpointStatus]:
        """Return the figures of all endpoints."""
        return self._pool.endpoints()

    # --- what others see --------------------------------------------------------------

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            await self._look()

    async def _look(self) -> None:
        """Set health and gauges; log what has changed of an endpoint."""
        status = _SERVING if self._core.is_ready else _NOT_SERVING
        await self._health.set(LIVENESS, _SERVING)
        for name in ("", READINESS, EXT_PROC):
            await self._health.set(name, status)
        endpoints = self.endpoints()
        self._metrics.look(endpoints, self._core.num_waiting)
        said = {each.address: (each.health, each.ends.value) for each in endpoints}
        for address, (level, ends) in said.items():
            if self._said.get(address) != (level, ends):
                self._log.info("endpoint", endpoint=address, health=level, ends_of_passes=ends)
        self._said = said


async def serve(config: PickerConfig, ending: Ending) -> None:
    """Serve until a signal comes, or a task that it lives by has ended."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(ending.take)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.begins.set)
    registry = CollectorRegistry()
    metrics = ServiceMetrics(registry, "picker", config.service_id)
    async with AsyncExitStack() as undo:
        if config.metrics_listen:
            undo.enter_context(serve_metrics(config.metrics_listen, registry, metrics.probes))
        service = PickerService(config, registry)
        undo.push_async_callback(service.stop)
        await service.start()
        undo.callback(essential(watch_event_loop(config.hang_timeout), "watchdog").cancel)
        undo.callback(essential(metrics.watch_loop(), "event loop metrics").cancel)
        metrics.serving(True)
        await ending.begins.wait()
        metrics.serving(False)
