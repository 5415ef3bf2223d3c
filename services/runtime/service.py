"""A service's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import uvloop
from prometheus_client import start_http_server

from headway.errors import HeadwayError
from services.runtime.clock import Clock
from services.runtime.config import ServiceConfig
from services.runtime.logs import configure_logs, get_logger
from services.runtime.membership import MembershipLease
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store

C = TypeVar("C", bound=ServiceConfig)
STOP_GRACE = 1.0


@dataclass
class Runtime(Generic[C]):
    """What a service is built from. ``address`` is known once the server listens."""

    config: C
    clock: Clock
    store: Store
    server: GrpcServer
    log: Any
    address: str = ""


class Service(Protocol):
    """What the runtime asks of a service."""

    def member(self) -> Mapping[str, Any]:
        """What the membership says beside id and address: role, model, detail."""

    async def start(self) -> None:
        """Get ready to serve; the gRPC server listens already."""

    async def drain(self) -> None:
        """Take nothing new and return when what runs has ended."""

    async def stop(self) -> None:
        """Let go of everything."""


def run_service(
    config: C,
    build: Callable[[Runtime[C]], Awaitable[Service]],
) -> None:
    """Run until SIGTERM or SIGINT: drain, stop, exit 0. A second signal exits at once."""
    name = type(config).__name__.removesuffix("Config").lower()
    configure_logs(config.log_level, config.log_format, name, config.service_id)
    try:
        uvloop.run(_run(name, config, build))
    except HeadwayError as error:
        get_logger().error("cannot_start", error=error.message)
        sys.exit(1)
    except Exception as error:
        get_logger().error("crashed", error=repr(error), exc_info=error)
        sys.exit(1)


async def _run(name: str, config: C, build: Callable[[Runtime[C]], Awaitable[Service]]) -> None:
    stopping = _on_signals()
    log = get_logger()
    if config.metrics_listen:
        host, _, port = config.metrics_listen.rpartition(":")
        start_http_server(int(port), host)
    store = await Store.connect(config.store, config.cluster)
    runtime = Runtime(config, Clock(), store, GrpcServer(config), log)
    service = await build(runtime)
    runtime.address = await runtime.server.start()
    await service.start()
    await runtime.server.set_serving(True)
    lease = MembershipLease(
        store, Member(name, config.service_id, runtime.address, **service.member())
    )
    lease.start()
    log.info("serving", address=runtime.address)
    await stopping.wait()
    log.info("draining")
    await runtime.server.set_serving(False)
    try:
        async with asyncio.timeout(config.drain_timeout):
            await service.drain()
    except TimeoutError:
        log.warning("drain_timed_out", drain_timeout=config.drain_timeout)
    await lease.stop()
    await service.stop()
    await runtime.server.stop(STOP_GRACE)
    await store.close()
    log.info("stopped")


def _on_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stopping
