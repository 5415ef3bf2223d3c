"""Metrics that every service has, and their HTTP endpoint for Prometheus.

Names begin with ``headway_``, times are in seconds. Nothing here runs on a request's path.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.errors import Code, HeadwayError
from services.runtime.config import host_and_port
from services.runtime.log_lines import LogLines
from services.runtime.probes import Probes
from services.runtime.scrape_pace import KEPT, ScrapePace
from services.runtime.store import Store

_LAG_INTERVAL = 0.5
_SILENCE = 10.0  # seconds
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class ServiceMetrics:
    """The service's status and identity, and the delay of its event loop."""

    def __init__(self, registry: CollectorRegistry, service: str, service_id: str) -> None:
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        info = Gauge(
            "headway_service_info",
            "1 for the running service; its labels identify it.",
            ["service", "service_id", "version"],
            registry=registry,
        )
        info.labels(service, service_id, package_version()).set(1)
        self._serving = Gauge(
            "headway_service_serving",
            "1 while gRPC health says SERVING, else 0.",
            registry=registry,
        )
        self.probes = Probes()
        self._lag = Histogram(
            "headway_event_loop_lag_seconds",
            "Seconds by which a sleep of the event loop overran, sampled twice a second.",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )

        self._dropped = Gauge(
            "headway_log_lines_dropped",
            "Log lines that could not be written, since the start.",
            registry=registry,
        )
        self._unreadable = Gauge(
            "headway_store_unreadable_values",
            "Values of the store that could not be read, since the start.",
            registry=registry,
        )

    def watch_logs(self, lines: LogLines) -> None:
        """Report the lines that could not be written."""
        self._dropped.set_function(lambda: lines.num_dropped)

    def watch_store(self, store: Store) -> None:
        """Report the values of the store that could not be read."""
        self._unreadable.set_function(lambda: store.num_unreadable)

    def serving(self, serving: bool) -> None:
        """Set the reported health."""
        self.probes.is_serving = serving
        self._serving.set(serving)

    async def watch_loop(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + _LAG_INTERVAL
            await asyncio.sleep(_LAG_INTERVAL)
            self.probes.beat()
            self._lag.observe(max(0.0, loop.time() - due_at))


class _Nameless(Collector):
    """The metrics that name no tenant."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def restricted_registry(self, names: Iterable[str]) -> Collector:
        """Return those of some names (``?name[]=``)."""
        restricted: Any = self._registry
        return _Nameless(restricted.restricted_registry(names))

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if not any("tenant" in sample.labels for sample in family.samples):
                yield family


@contextmanager
def serve_metrics(
    listen: str,
    registry: CollectorRegistry,
    probes: Probes,
    sees_tenants: Callable[[str], bool] = lambda authorization: True,
) -> Iterator[str]:
    """Serve metrics and probes over HTTP at ``host:port`` from a thread; yield the bound address.

    ``sees_tenants``: whether who asks with this header is shown the tenants' names, and what they
    use. UNAVAILABLE where the address is taken.
    """
    host, port = host_and_port("metrics_listen", listen)
    try:
        server, _ = start_http_server(port, host, registry=registry)
    except OSError as error:
        message = f"cannot listen on {listen} ({error.strerror}): choose another --metrics-listen"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
    handler: Any = server.RequestHandlerClass
    silent = {"timeout": _SILENCE}  # of a connection, which holds a thread
    quiet: Any = server
    quiet.handle_error = lambda *_: None  # the end of a connection is worth no traceback
    pace = ScrapePace()
    quiet.verify_request = lambda _, address: pace.take(address[0])
    start, serve = quiet.process_request, quiet.process_request_thread

    def start_in_place(request: Any, address: Any) -> None:
        try:
            start(request, address)
        except BaseException:  # there is no thread for it
            pace.give_back(address[0])
            raise

    def serve_in_place(request: Any, address: Any) -> None:
        try:
            time.sleep(pace.wait(address[0]))
            serve(request, address)
        finally:
            pace.give_back(address[0])

    quiet.process_request = start_in_place
    quiet.process_request_thread = serve_in_place
    server.RequestHandlerClass = type(handler.__name__, (handler,), silent)
    whole, nameless = make_wsgi_app(registry), make_wsgi_app(_Nameless(registry))
    kept: dict[bool, tuple[float, bytes]] = {}

    def metrics_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        is_told = sees_tenants(environ.get("HTTP_AUTHORIZATION", ""))
        if pace.is_flood(environ.get("REMOTE_ADDR", "")):
            since, text = kept.get(is_told, (-inf, b""))
            if time.monotonic() >= since + KEPT:
                text = generate_latest(registry if is_told else _Nameless(registry))
                kept[is_told] = time.monotonic(), text
            start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
            return [text]
        shown: Any = whole if is_told else nameless
        try:
            answer: Iterable[bytes] = shown(environ, start_response)
        except TypeError:  # a form of text whose version is no number
            answer = shown({**environ, "HTTP_ACCEPT": ""}, start_response)
        return answer

    server.set_app(probes.beside(metrics_app))
    try:
        yield f"{host}:{server.server_port}"
    finally:
        # shutdown() blocks until the thread's next poll, up to half a second: not on our loop
        threading.Thread(target=_close, args=(server,), daemon=True).start()


def _close(server: WSGIServer) -> None:
    server.shutdown()
    server.server_close()


@cache
def package_version() -> str:
    """Return the release that is installed, ``unknown`` without one."""
    try:
        return version("headway")
    except PackageNotFoundError:
        return "unknown"
