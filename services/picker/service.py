"""The picker's service: a core, its driver, its gRPC server, and a watcher for each endpoint."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress

import aiohttp
import grpc
import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    EndpointListed,
    EndpointStatus,
    EndpointUnlisted,
    Pick,
    PickAsked,
    PickAskedAtOnce,
    PickEnded,
    PickerAction,
    PickerEvent,
    Refuse,
    Responded,
)
from headway.core.scheduler.events import Decision, Note
from headway.errors import Code, HeadwayError
from headway.request import StreamKey
from services.endpoints.endpoints_file import EndpointEntry, entries_of, read_entries, resolve
from services.endpoints.pool_watch import PoolWatch
from services.endpoints.watcher import Watcher
from services.picker.config import PickerConfig
from services.picker.ext_proc import Answer, ExternalProcessor, HttpExchange
from services.picker.leadership import PickerLeadership
from services.picker.metrics import PickerMetrics
from services.picker.prompts import Prompts
from services.runtime.channel import KEEPALIVE, tls_source
from services.runtime.clock import Clock
from services.runtime.config import host_and_port, is_loopback
from services.runtime.driver import Driver
from services.runtime.essential import Ending, essential
from services.runtime.identity.tls_files import server_credentials
from services.runtime.kubernetes import require_client
from services.runtime.logs import get_logger
from services.runtime.telemetry import ServiceMetrics, serve_metrics
from services.runtime.watchdog import watch_event_loop

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS, READINESS = "liveness", "readiness"
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
        self._entries = self._read_entries()
        self._driver: Driver[PickerEvent, PickerAction] = Driver(
            self._core, self._perform, self._clock
        )
        self._answers: dict[StreamKey, asyncio.Future[Answer]] = {}
        self._watchers: dict[str, Watcher] = {}
        self._pools: dict[str, PoolWatch] = {}
        self._pods_changed = asyncio.Event()
        self._said: dict[str, tuple[str, str]] = {}
        self._health = health.aio.HealthServicer()
        self._undo = AsyncExitStack()
        self.address = ""
        self.leadership: PickerLeadership | None = None
        """Its part among several pickers; None where it is alone, or all are asked."""
        self.num_answered = 0

    def _read_entries(self) -> Mapping[str, EndpointEntry]:
        config = self._config
        if config.endpoints_file is not None:
            entries = read_entries(config.endpoints_file)
        elif config.inference_pool:
            entries = [EndpointEntry(pool=config.inference_pool)]
        else:
            entries = entries_of(config.endpoints)
        return {entry.address or f"pool {entry.pool}": entry for entry in entries}

    # --- its life ---------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and begin to watch the endpoints."""
        config, undo = self._config, self._undo
        server = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        processor = ExternalProcessor(self._ask, self._responded, self._ended, config.max_body)
        external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(processor, server)
        self.address = self._bind(server)
        self._client = await undo.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        undo.callback(self._driver.close)
        undo.push_async_callback(self._close_watchers)
        if any(entry.pool for entry in self._entries.values()):
            require_client("an InferencePool")
        await self._look()
        await server.start()
        undo.push_async_callback(server.stop, _STOP_GRACE)
        undo.callback(essential(self._list_again(), "endpoints").cancel)
        undo.callback(essential(self._look_again(), "readiness").cancel)
        await self._list()
        if config.leader_of:
            require_client("--leader-of")
            port = int(self.address.rpartition(":")[2])
            self.leadership = PickerLeadership(
                config.leader_of, config.service_id, config.advertise, port, self._clock.now
            )
            undo.push_async_callback(self.leadership.close)
        self._log.info("serving", address=self.address, num_endpoints=len(self._watchers))

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
        future = asyncio.get_running_loop().create_future()
        self._answers[key] = future
        self._driver.post(self._question(key, exchange, now))
        answer: Answer = await future
        self.num_answered += 1
        self._metrics.answered(answer, self._clock.now() - now)
        return answer

    def _question(self, key: StreamKey, exchange: HttpExchange, now: float) -> PickerEvent:
        try:
            body = _DECODE(exchange.body) if exchange.body else None
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return PickAskedAtOnce(key, exchange.among)
        model = self._model_of(body.get("model"))
        request = self._prompts.request_of(body, exchange.headers, key.stream_id, model, now)
        return PickAsked(request, exchange.among)

    def _model_of(self, name: object) -> str:
        """Return the pool of a model's name: an adapter's, or any other, is that of the first."""
        models = [watcher.listed.info.model for watcher in self._watchers.values()]
        return name if isinstance(name, str) and name in models else next(iter(models), "")

    def _responded(self, number: int, served: str, failed: bool) -> None:
        self._driver.post(Responded(StreamKey(GATEWAY_ID, number), served, failed))

    def _ended(self, number: int) -> None:
        key = StreamKey(GATEWAY_ID, number)
        self._answers.pop(key, None)
        self._driver.post(PickEnded(key))

    def _perform(self, action: PickerAction) -> None:
        match action:
            case Pick() | Refuse():
                future = self._answers.pop(action.key, None)
                if future is not None and not future.done():
                    future.set_result(action)
            case Note():
                self._log.warning(action.event, endpoint=action.worker_id, detail=action.detail)
            case Decision():
                for chosen in action.chosen:
                    self._log.debug(
                        "decided",
                        rule=action.rule,
                        request_id=chosen.request_id,
                        endpoint=chosen.unit.worker_id,
                        waited=round(chosen.waited, 6),
                    )

    # --- endpoints --------------------------------------------------------------------

    async def _list_again(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.resolve_interval):
                    await self._pods_changed.wait()
            self._pods_changed.clear()
            try:
                self._entries = await asyncio.to_thread(self._read_entries)
            except HeadwayError as error:
                self._log.error("endpoints_unchanged", reason=error.message)
            await self._list()

    async def _list(self) -> None:
        """Watch what is listed and new; forget what is listed no longer."""
        await self._watch_pools()
        try:
            entries = [*self._entries.values()]
            found = await resolve(entries, lambda pool: self._pools[pool].endpoints)
            listed = {each.info.address: each for each in found}
        except OSError as error:
            self._log.error("endpoints_unchanged", reason=f"a name cannot be looked up: {error}")
            return
        for address, watcher in list(self._watchers.items()):
            if listed.get(address) != watcher.listed:
                del self._watchers[address]
                await watcher.close()
                if address not in listed:
                    self._driver.post(EndpointUnlisted(address))
        for address, each in listed.items():
            if address not in self._watchers:
                self._driver.post(EndpointListed(each.info))
                self._watchers[address] = Watcher(
                    each,
                    self._client,
                    self._config.scrape_interval,
                    self._config.scrape_timeout,
                    self._clock.now,
                    self._driver.post,
                )

    async def _watch_pools(self) -> None:
        named = {entry.pool for entry in self._entries.values() if entry.pool}
        for name in self._pools.keys() - named:
            await self._pools.pop(name).close()
        for name in sorted(named - self._pools.keys()):
            self._pools[name] = PoolWatch(name, self._pods_changed.set)

    async def _close_watchers(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await asyncio.gather(*(watcher.close() for watcher in self._watchers.values()))

    @property
    def num_waiting(self) -> int:
        """Requests that are held."""
        return self._core.num_waiting

    def endpoints(self) -> list[EndpointStatus]:
        """Return the figures of all endpoints."""
        return self._core.endpoints()

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
