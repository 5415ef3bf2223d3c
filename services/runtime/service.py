"""A service's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import uvloop
from prometheus_client import CollectorRegistry

from headway.errors import HeadwayError
from services.runtime import event_record
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.logs import configure_logs, get_logger
from services.runtime.membership import MembershipLease
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store
from services.runtime.telemetry import ServiceMetrics, serve_metrics

C = TypeVar("C", bound=ServiceConfig)
STOP_GRACE = 1.0


@dataclass
class Runtime(Generic[C]):
    """The parts a service is built from. ``address`` is known once the server listens.

    ``metrics`` are served at ``metrics_listen``. ``lease``: the membership, while serving.
    """

    config: C
    clock: Clock
    store: Store
    server: GrpcServer
    log: Any
    address: str = ""
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    lease: MembershipLease | None = None


class Service(Protocol):
    """The service's interface to the runtime."""

    def member(self) -> Mapping[str, Any]:
        """Return the member's fields besides its id: role, model, detail, another address."""

    async def start(self) -> None:
        """Prepare to serve; the gRPC server already listens."""

    async def drain(self) -> None:
        """Refuse new work; return when running work has ended."""

    async def stop(self) -> None:
        """Release everything."""


def run_service(
    config: C,
    build: Callable[[Runtime[C]], Awaitable[Service]],
) -> None:
    """Run until SIGTERM or SIGINT: drain, stop, exit 0. A second signal exits at once.

    Exits with 1 if the service cannot start or crashes, 128 + signal number at a second signal.
    """
    configure_logs(config.log_level, config.log_format, config.service_name(), config.service_id)
    event_record.configure(config.record_events, config.service_id)
    try:
        uvloop.run(_live(config, build))
    except HeadwayError as error:
        get_logger().error("cannot_start", error=error.message)
        _leave(1)
    except Exception as error:
        get_logger().error("crashed", error=repr(error), exc_info=error)
        _leave(1)
    _leave(0)


async def _live(config: C, build: Callable[[Runtime[C]], Awaitable[Service]]) -> None:
    asyncio.get_running_loop().set_exception_handler(_log_stray_error)
    stopping = _on_signals()
    log = get_logger()
    async with AsyncExitStack() as undo:
        starting = asyncio.create_task(_start(config, build, undo))
        if not await _done_before(starting, stopping):
            log.info("stopped", reason="stopped while starting")
            _leave(0)  # at once: a thread that is still loading cannot be stopped
        await _drain(*starting.result(), stopping)
    log.info("stopped")


async def _start(
    config: C, build: Callable[[Runtime[C]], Awaitable[Service]], undo: AsyncExitStack
) -> tuple[Runtime[C], Service, ServiceMetrics]:
    """Start everything; ``undo`` stops it in reverse order."""
    registry = CollectorRegistry()
    metrics = ServiceMetrics(registry, config.service_name(), config.service_id)
    if config.metrics_listen:
        undo.enter_context(serve_metrics(config.metrics_listen, registry))
    store = await Store.connect(config.store, config.cluster)
    undo.push_async_callback(store.close)
    server = GrpcServer(config)
    runtime = Runtime(config, Clock(), store, server, get_logger(), metrics=registry)
    service = await build(runtime)
    runtime.address = await server.start()
    undo.push_async_callback(server.stop, STOP_GRACE)
    await service.start()
    undo.push_async_callback(service.stop)
    watching = asyncio.create_task(metrics.watch_loop())
    undo.callback(watching.cancel)
    await server.set_serving(True)
    metrics.serving(True)
    said = dict(service.member())
    address = said.pop("address", runtime.address)
    said["detail"] = {**said.get("detail", {}), "pid": str(os.getpid())}
    member = Member(config.service_name(), config.service_id, address, **said)
    lease = runtime.lease = MembershipLease(store, member)
    lease.start()
    undo.push_async_callback(lease.stop)
    runtime.log.info("serving", address=runtime.address)
    return runtime, service, metrics


async def _drain(
    runtime: Runtime[C], service: Service, metrics: ServiceMetrics, stopping: asyncio.Event
) -> None:
    await stopping.wait()
    runtime.log.info("draining")
    await runtime.server.set_serving(False)
    metrics.serving(False)
    try:
        async with asyncio.timeout(runtime.config.drain_timeout):
            await service.drain()
    except TimeoutError:
        runtime.log.warning("drain_timed_out", drain_timeout=runtime.config.drain_timeout)


async def _done_before(task: asyncio.Task[Any], stopping: asyncio.Event) -> bool:
    """Return whether ``task`` ends, in whatever way, before ``stopping`` is set."""
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task.done()


def _on_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopping


def _leave(status: int) -> NoReturn:
    """Exit the process without Python's teardown, which takes 1 s with torch."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _log_stray_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a task or callback that nobody awaits."""
    error = context.get("exception")
    get_logger().error("unexpected_error", where=context.get("message"), exc_info=error)
