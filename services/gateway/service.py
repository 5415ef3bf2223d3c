"""The gateway: turns calls into events, and actions into replies, submissions and cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from headway.console.recent import RecentRequests
from headway.core.gateway.class_rules import ClassRules
from headway.core.gateway.events import Submit
from headway.errors import HeadwayError
from headway.life.record import CallLives, LifeRecord
from headway.service_class import ServiceClasses
from services.gateway.access_log import RequestLog
from services.gateway.auth import KeyRing
from services.gateway.bounds import ClientBounds
from services.gateway.calls import Calls
from services.gateway.cluster_side import ClusterSide
from services.gateway.config import GatewayConfig
from services.gateway.console.feed import ConsoleFeed
from services.gateway.console.observer import ClusterObserver
from services.gateway.console.routes import ConsoleRoutes
from services.gateway.console.what_if import OwnWays, WhatIfDesk
from services.gateway.grpc_edge import GatewayEdge
from services.gateway.http.descriptors import reserve
from services.gateway.http.edge import HttpEdge
from services.gateway.http.server import HttpServer, tls_context
from services.gateway.inference_edge import InferenceEdge
from services.gateway.metrics import VLLM_NAMES, GatewayMetrics
from services.gateway.model_loading import load_models
from services.gateway.openai.stored_responses import StoredResponses
from services.gateway.outputs import Output
from services.gateway.past import KeptPast
from services.gateway.reading import ReadingThreads
from services.gateway.served_model import ServedModels
from services.gateway.session_metrics import SessionMetrics
from services.runtime.server import GrpcServer
from services.runtime.service import STOP_GRACE, Runtime
from services.runtime.vllm_names import VllmNames


async def build(runtime: Runtime[GatewayConfig]) -> GatewayService:
    """Make the service and register its RPCs. HeadwayError where model or keys do not serve."""
    models = load_models(runtime.config)
    service = GatewayService(runtime, models, GrpcServer(runtime.config.for_sink()))
    runtime.server.add(service.grpc_edge)
    runtime.server.add(InferenceEdge(service.grpc_edge, models, service.is_ready))
    return service


class GatewayService:
    """The shell around :class:`GatewayCore`; ``build`` makes one."""

    def __init__(
        self, runtime: Runtime[GatewayConfig], models: ServedModels, sink_server: GrpcServer
    ) -> None:
        config, self.now = runtime.config, runtime.clock.now
        self._runtime, self._models = runtime, models
        self.http_address = ""  # known once it listens
        self._request_log = RequestLog(config, runtime.log)
        classes = config.service_classes()
        if config.classes is not None:
            self._request_log.class_used()
        self.metrics = GatewayMetrics(runtime.metrics, config.policies().worker.reader_pace)
        recent = RecentRequests(self.now())
        self.cluster = ClusterSide(
            runtime, models, sink_server, self.metrics, recent, self._note_end, self.unexpected
        )
        self._keys = KeyRing(
            config.api_key_file,
            classes,
            draw=runtime.machine.draw,
            fair_clients=config.fair_clients,
        )
        self.console = self._make_console(recent, classes)
        self._past = KeptPast(
            runtime.store,
            config.service_id,
            recent,
            self.cluster.core.lives,
            runtime.clock,
            config.past_interval,
        )
        bounds = config.client_bounds()
        reserve(config.max_connections)
        self._calls = self._make_calls(bounds, classes)
        self.grpc_edge = GatewayEdge(self._calls, self._keys, self.metrics, self.follow, self.now)
        self.http_edge = HttpEdge(
            self._calls,
            self._keys,
            self.metrics,
            self,
            config.origins(),
            self.console,
            self._stored_responses(),
            needs_key=config.api_key_file is not None,
            monitoring_needs_key=config.monitoring_needs_key,
        )
        self._http = HttpServer(self.http_edge, config.http_limits(), bounds)
        self._watch(bounds)

    def _make_console(self, recent: RecentRequests, classes: ServiceClasses) -> ConsoleRoutes:
        config, link, model = self._runtime.config, self.cluster.link, self._models.only
        observer = ClusterObserver(config, model, self._runtime.store, link.picture, self.now)
        feed = ConsoleFeed(self.cluster.core, recent, classes, observer, self._describe, self.now)
        own = OwnWays(config.profile, config.preset, config.policy, config.set)
        desk = WhatIfDesk(
            lambda: recent.last_minutes(self.now()), feed.promises, own, link.picture, model
        )
        return ConsoleRoutes(
            feed, desk, self._keys, self.unexpected, needs_key=config.api_key_file is not None
        )

    def _make_calls(self, bounds: ClientBounds, classes: ServiceClasses) -> Calls:
        config, cluster = self._runtime.config, self.cluster
        return Calls(
            self._models,
            cluster.outputs,
            self._submit,
            cluster.feedback.predict,
            ReadingThreads(bounds.buffered),
            bounds.places,
            lambda: cluster.core.retry_after,
            self._keys,
            # What the shipped classes may, nobody here has given to anybody.
            ClassRules(classes, None if config.classes is not None else config.request_timeout),
            self.now,
        )

    def _stored_responses(self) -> StoredResponses | None:
        """Return the store of responses, and count it; None where none is kept."""
        config, watch = self._runtime.config, self.metrics.watch
        if not config.max_stored_bytes:
            return None
        most_each = min(config.max_body_bytes, self._calls.models.most_body_bytes(1))
        stored = StoredResponses(
            config.max_stored_bytes, most_each, config.stored_response_age, self.now
        )
        watch("stored_responses", "Responses that can be continued.", lambda: stored.num_stored)
        watch("stored_bytes", "Bytes that they take.", lambda: stored.num_bytes)
        return stored

    def _watch(self, bounds: ClientBounds) -> None:
        """Show what is open, held and attached as metrics."""
        cluster, core, watch = self.cluster, self.cluster.core, self.metrics.watch
        streams, pacers = core.streams, core.pacers
        watch("open_requests", "Requests that have not ended.", lambda: core.num_open)
        watch("waiting_requests", "Requests without a first token.", lambda: core.num_waiting)
        running = "Requests between their first and their last token."
        watch("running_requests", running, lambda: core.num_open - core.num_waiting)
        again = "Attempts beyond the first, since the start."
        watch("resubmitted_requests", again, lambda: streams.num_resubmitted)
        watch("paced_tokens", "Answering tokens held for their reader.", lambda: pacers.num_paced)
        watch("tokens_in_hand", "Answering tokens held now.", lambda: pacers.num_in_hand)
        watch("attached_workers", "Workers' token streams.", lambda: cluster.sink.num_attached)
        connections = bounds.connections
        watch("http_connections", "HTTP connections that are open.", lambda: connections.num_taken)
        buffered = "Bytes of bodies and unread answers that wait in memory."
        watch("buffered_bytes", buffered, lambda: bounds.buffered.num_taken)
        readiness = cluster.readiness
        watch("ready", "1 while requests can be served.", lambda: not readiness.reasons)
        listens = "1 while a scheduler leader listens."
        watch("scheduler_connected", listens, lambda: float(cluster.link.connected))
        SessionMetrics(core.sessions, self.metrics.registry)
        VllmNames(self.metrics.registry, VLLM_NAMES, ", ".join(self._models.names))

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Let workers in, follow the scheduler, then let clients in."""
        config = self._runtime.config
        await self.cluster.start()
        await self._past.start()
        self.console.feed.start()
        tls = None
        if config.http_tls_cert is not None and config.http_tls_key is not None:
            tls = tls_context(config.http_tls_cert, config.http_tls_key)
        host, port = await self._http.start(config.http_host, config.http_port, tls)
        self.http_address = f"{host}:{port}"
        self._runtime.log.info(
            "http_listening",
            url=f"{'https' if tls else 'http'}://{self.http_address}",
            model=", ".join(self._models.names),
            max_model_len=max(model.max_model_len for model in self._models),
        )

    def member(self) -> Mapping[str, Any]:
        """Describe this gateway for the membership; its address there is the one for workers."""
        clients = {"http": self.http_address, "grpc": self._runtime.address}
        return {"address": self.cluster.sink_address, "model": self._models.only, "detail": clients}

    async def drain(self) -> None:
        """Refuse new requests; wait for open ones to finish."""
        self.grpc_edge.draining = True
        await self.console.feed.close()
        await self._http.drain(self._runtime.config.drain_timeout)
        while self.cluster.core.num_open:  # noqa: ASYNC110 (gRPC's clients; the core knows no events)
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End every stream."""
        await self.console.feed.close()
        self._http.stop()
        await self._runtime.server.stop(STOP_GRACE)
        await self.cluster.stop()
        await self._past.stop()  # last, with the streams that were cut
        await self._request_log.close()
        self._calls.threads.close()

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self.cluster.core.num_open

    # --- requests ---------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        if submit.request.standing.service is not None:
            self._request_log.class_used()
        self.cluster.submit(submit)

    def _note_end(self, output: Output, end: str) -> None:
        """Complete the life with what the client saw, and log a line of it."""
        ended = self.console.feed.ended(output, end)
        if self._runtime.config.api_key_file is not None:
            self._calls.ended(output)
        now, text = self.now(), output.text
        life = self.cluster.core.lives.finish(
            output.request_id,
            end,
            now,
            first_answer_at=output.answered_at[0] if output.answered_at else None,
            num_reasoning=text.num_reasoning_tokens,
            num_output=text.num_tokens,
        )
        self._past.ended(ended, life)
        self._request_log.ended(output, end, life, now)

    def _describe(self) -> Mapping[str, Any]:
        """Return what the console says of this gateway."""
        config, core = self._runtime.config, self.cluster.core
        return {
            **self.health(),
            "id": config.service_id,
            "preset": config.preset,
            "profile": config.profile,
            "open": core.num_open,
            "waiting": core.num_waiting,
        }

    # --- for the HTTP edge ------------------------------------------------------

    def is_ready(self, model: str = "") -> bool:
        """Return whether requests can be served, and are taken: a model's, or any."""
        if self.grpc_edge.draining or self.cluster.readiness.reasons:
            return False
        return self.cluster.readiness.serves(model)

    def health(self) -> Mapping[str, Any]:
        """Describe the gateway: whether it can serve, and what is missing, for any model."""
        status = "not ready" if self.cluster.readiness.reasons else "ok"
        return {
            "status": "draining" if self.grpc_edge.draining else status,
            "reason": "; ".join(self.cluster.readiness.lacks),
            "model": ", ".join(self._models.names),
            "scheduler_connected": self.cluster.link.connected,
        }

    async def explain(self, request_id: str) -> list[str]:
        """Return the leader's decisions about a request, as JSON."""
        return await self.cluster.link.explain(request_id)

    def life(self, request_id: str) -> LifeRecord | None:
        """Return the life of a request by its own id, None if this gateway does not know it."""
        return self.cluster.core.lives.find(request_id, self.now())

    def call(self, asked: str) -> CallLives:
        """Return the lives of the newest call that an id means."""
        return self.cluster.core.lives.call(asked, self.now())

    def follow(self, request_id: str, traceparent: str) -> None:
        """Let a request belong to its client's trace, if traces are sent."""
        self._request_log.follow(request_id, traceparent)

    def lives(self, since: float) -> Iterator[LifeRecord]:
        """Yield the lives that ended at or after an instant, and those that are open."""
        return self.cluster.core.lives.since(since, self.now())

    def refused(self, client: str, path: str, error: HeadwayError, *, is_known: bool) -> None:
        """Log who asked in vain, where served requests are logged, too; few lines of strangers."""
        self._request_log.refused(client, path, error, self.now(), is_known=is_known)

    def unexpected(self, error: Exception, where: str) -> None:
        """Log a bug."""
        self._runtime.log.error("unexpected_error", where=where, error=repr(error), exc_info=error)
