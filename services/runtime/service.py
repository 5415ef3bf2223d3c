"""A service's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import uvloop
from prometheus_client import CollectorRegistry

from headway.errors import Code, HeadwayError
from services.runtime import event_record
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.essential import Ending, essential
from services.runtime.identity.tls_faults import own_fault
from services.runtime.log_lines import LogLines, configure_logs
from services.runtime.logs import get_logger
from services.runtime.machine import Machine
from services.runtime.membership import MembershipLease
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store
from services.runtime.telemetry import ServiceMetrics, serve_metrics
from services.runtime.watchdog import watch_event_loop

C = TypeVar("C", bound=ServiceConfig)
STOP_GRACE = 1.0
_REFUSED = 2
_FINAL = (Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
"""Exit status of a start that would fail again: the supervisor tries no more."""
_MOST_FILES = 65_536
_TURN = 5e-4
"""Seconds that a thread holds the interpreter while another waits for it: an answer passes the
event loop a dozen times, beside threads that read others' requests or compute their passes."""
_LAST_PATIENCE = 5.0
"""Seconds that a service has to let go after one of its essential tasks has ended."""


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
    machine: Machine = field(default_factory=Machine)


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

    Exits with 1 if the service cannot start, crashes, or loses a task that it lives by; with 2 if
    an option, a file or the store refuses it, so that it would fail again; with 128 + signal
    number at a second signal.
    """
    _allow_many_files()
    sys.setswitchinterval(_TURN)
    names = (config.service_name(), config.service_id)
    lines = configure_logs(config.log_level, config.log_format, *names)
    try:
        event_record.configure(config.record_events, config.service_id, config.record_spans)
        uvloop.run(_live(config, build, lines))
    except HeadwayError as error:
        get_logger().error("cannot_start", error=error.message)
        _leave(_REFUSED if error.code in _FINAL else 1)
    except Exception as error:
        get_logger().error("crashed", error=repr(error), exc_info=error)
        _leave(1)
    _leave(0)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as the system lets us.

    Whoever reaches a port may hold descriptors of this process by connecting to it. It must still
    be able to dial and to open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _live(
    config: C, build: Callable[[Runtime[C]], Awaitable[Service]], lines: LogLines
) -> None:
    ending = Ending()
    asyncio.get_running_loop().set_exception_handler(ending.take)
    _end_on_signals(ending)
    log = get_logger()
    async with AsyncExitStack() as undo:
        starting = asyncio.create_task(start(config, build, undo, lines))
        if not await done_before(starting, ending.begins):
            log.info("stopped", reason=ending.failure or "stopped while starting")
            _leave(1 if ending.failure else 0)  # a thread that still loads cannot be stopped
        await drain(*starting.result(), ending)
    log.info("stopped")
    if ending.failure:
        _leave(1)


async def start(
    config: C,
    build: Callable[[Runtime[C]], Awaitable[Service]],
    undo: AsyncExitStack,
    lines: LogLines,
    machine: Machine | None = None,
) -> tuple[Runtime[C], Service, ServiceMetrics]:
    """Start everything; ``undo`` stops it in reverse order. ``machine``: None for the real one."""
    machine = machine or Machine()
    if fault := own_fault(config):
        raise HeadwayError(Code.FAILED_PRECONDITION, fault)
    config.check()
    server = GrpcServer(config, for_clients=config.serves_clients)
    registry = CollectorRegistry()
    metrics = ServiceMetrics(registry, config.service_name(), config.service_id)
    metrics.watch_logs(lines)
    if config.metrics_listen:
        metrics_server = serve_metrics(
            config.metrics_listen, registry, metrics.probes, config.sees_tenants()
        )
        undo.enter_context(metrics_server)
    store = await machine.connect(config)
    undo.push_async_callback(store.close)
    metrics.watch_store(store)
    clock = machine.clock(config.clock_error)
    runtime = Runtime(config, clock, store, server, get_logger(), metrics=registry, machine=machine)
    service = await build(runtime)
    runtime.address = await server.start()
    undo.push_async_callback(server.stop, STOP_GRACE)
    await service.start()
    undo.push_async_callback(service.stop)
    undo.callback(essential(metrics.watch_loop(), "event loop metrics").cancel)
    undo.callback(essential(watch_event_loop(config.hang_timeout), "watchdog").cancel)
    await server.set_serving(True)
    metrics.serving(True)
    said = dict(service.member())
    address = said.pop("address", runtime.address)
    said["detail"] = {**said.get("detail", {}), "pid": str(machine.pid())}
    member = Member(config.service_name(), config.service_id, address, **said)
    lease = runtime.lease = MembershipLease(store, member)
    lease.start()
    undo.push_async_callback(lease.stop)
    runtime.log.info("serving", address=runtime.address)
    return runtime, service, metrics


async def drain(
    runtime: Runtime[C], service: Service, metrics: ServiceMetrics, ending: Ending
) -> None:
    """Wait for the end; then let running work finish, unless the service has failed."""
    await ending.begins.wait()
    runtime.log.info("draining")
    await runtime.server.set_serving(False)
    metrics.serving(False)
    if ending.failure:
        asyncio.get_running_loop().call_later(_LAST_PATIENCE, _leave, 1)
        return
    try:
        async with asyncio.timeout(runtime.config.drain_timeout):
            await service.drain()
    except TimeoutError:
        runtime.log.warning("drain_timed_out", drain_timeout=runtime.config.drain_timeout)


async def done_before(task: asyncio.Task[Any], stopping: asyncio.Event) -> bool:
    """Return whether ``task`` ends, in whatever way, before ``stopping`` is set."""
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task.done()


def _end_on_signals(ending: Ending) -> None:
    def stop(number: int) -> None:
        if ending.begins.is_set():
            os._exit(128 + number)
        ending.begins.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def _leave(status: int) -> NoReturn:
    """Exit the process without Python's teardown, which takes 1 s with torch."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full, closed, or never open
            stream.flush()
    os._exit(status)
