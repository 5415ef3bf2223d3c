"""The gateway: turns calls into events, and actions into replies, submissions and cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from headway.core.gateway.class_rules import ClassRules
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    Release,
    Submit,
)
from headway.core.gateway.stream_ids import StreamIds
from headway.errors import HeadwayError
from headway.life.record import CallLives, LifeRecord
from headway.messages import CancelStream
from headway.request import Request
from headway.service_class import ServiceClasses
from services.gateway.access_log import RequestLog
from services.gateway.auth import KeyRing
from services.gateway.calls import Calls
from services.gateway.config import GatewayConfig
from services.gateway.console.feed import ConsoleFeed
from services.gateway.console.routes import ConsoleRoutes
from services.gateway.console.sight import ClusterSight
from services.gateway.console.what_if import OwnWays, WhatIfDesk
from services.gateway.feedback import Feedback
from services.gateway.feedbacks import Feedbacks
from services.gateway.grpc_edge import GatewayEdge
from services.gateway.http.descriptors import reserve
from services.gateway.http.edge import HttpEdge
from services.gateway.http.server import HttpServer, tls_context
from services.gateway.inference_edge import InferenceEdge
from services.gateway.metrics import VLLM_NAMES, GatewayMetrics
from services.gateway.model_loading import core_settings, load_models
from services.gateway.openai.stored_responses import StoredResponses
from services.gateway.outputs import Output, Outputs
from services.gateway.readiness import Readiness
from services.gateway.reading import ReadingThreads
from services.gateway.scheduler_link import SchedulerLink
from services.gateway.served_model import ServedModels
from services.gateway.session_metrics import SessionMetrics
from services.gateway.token_sink import TokenSink
from services.runtime.driver import Driver
from services.runtime.failpoints import failpoint
from services.runtime.membership import NONCE_DIGEST
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
        self._runtime, self._models = runtime, models
        config, self.now = runtime.config, runtime.clock.now
        self._told = RequestLog(config, runtime.log)
        self._sink_server = sink_server
        self.http_address = ""  # known once it listens
        self.metrics = GatewayMetrics(runtime.metrics, config.policies().worker.reader_pace)
        self._core = GatewayCore(
            config.service_id,
            self.sink_address,
            core_settings(config, models),
            draw_stream_id=StreamIds(runtime.machine.draw(32)),
        )
        self._driver = Driver(self._core, self._perform, runtime.clock)
        post = self._driver.post
        self._link = SchedulerLink(config, self.sink_address, runtime.store, post, self.now)
        self._readiness = Readiness(
            runtime.store,
            lambda: self._link.connected,
            runtime.server.set_ready,
            () if models.only else models.names,
        )
        self.sink = TokenSink(post, self._find_digest, self.now)
        sink_server.add(self.sink)
        self._feedback = Feedbacks(
            partial(Feedback, config, store=runtime.store, metrics=self.metrics, now=self.now),
            models.names,
            lambda: self._core.num_burst_tokens,
        )
        classes = config.service_classes()
        keys = KeyRing(
            config.api_key_file,
            classes,
            draw=runtime.machine.draw,
            fair_clients=config.fair_clients,
        )
        if config.classes is not None:
            self._told.class_used()
        self.console = self._make_console(config, classes, keys)
        self._outputs = Outputs(
            self.metrics,
            self._release,
            self._feedback.observe,
            self.unexpected,
            self.now,
            self._note_end,
        )
        bounds = config.client_bounds()
        reserve(config.max_connections)
        threads = ReadingThreads(bounds.buffered)
        calls = self._calls = Calls(
            models,
            self._outputs,
            self._submit,
            self._feedback.predict,
            threads,
            bounds.places,
            lambda: self._core.retry_after,
            keys,
            # What the shipped classes may, nobody here has given to anybody.
            ClassRules(classes, None if config.classes is not None else config.request_timeout),
            self.now,
        )
        self.grpc_edge = GatewayEdge(calls, keys, self.metrics, self.follow, self.now)
        http_edge = self.http_edge = HttpEdge(
            calls,
            keys,
            self.metrics,
            self,
            config.origins(),
            self.console,
            self._stored_responses(config),
            needs_key=config.api_key_file is not None,
            monitoring_needs_key=config.monitoring_needs_key,
        )
        self._http = HttpServer(http_edge, config.http_limits(), bounds)
        self._performers: Mapping[type, Callable[[Any], None]] = {
            Deliver: self._deliver,
            CancelTokens: self._cancel_tokens,
            Fail: self._fail,
            Request: self._hand_over,
            CancelStream: self._link.send,
        }
        self._watch()

    @property
    def sink_address(self) -> str:
        """The address to which workers send tokens."""
        return self._sink_server.bind()

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Let workers in, follow the scheduler, then let clients in."""
        config = self._runtime.config
        await self._sink_server.start()
        await self._sink_server.set_serving(True)
        await self._runtime.server.set_ready(False)
        self._link.start()
        self._readiness.start()
        self._feedback.start()
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
        return {"address": self.sink_address, "model": self._models.only, "detail": clients}

    async def drain(self) -> None:
        """Refuse new requests; wait for open ones to finish."""
        self.grpc_edge.draining = True
        await self.console.feed.close()
        await self._http.drain(self._runtime.config.drain_timeout)
        while self._core.num_open:  # noqa: ASYNC110 (gRPC's clients; the core knows no events)
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End every stream."""
        await self.console.feed.close()
        self._http.stop()
        self.sink.close()
        await self._feedback.stop()
        self._readiness.stop()
        await self._link.stop()
        await self._sink_server.stop(STOP_GRACE)
        self._driver.close()
        await self._told.close()
        self._calls.threads.close()

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self._core.num_open

    # --- events and actions -----------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        self.console.feed.recent.arrived()
        request = submit.request
        if request.standing.service is not None:
            self._told.class_used()
        self._feedback.arrived(request.model, len(request.prompt_token_ids), request.standing)
        self._driver.post(submit)

    def _release(self, request_id: str) -> None:
        self._driver.post(Release(request_id))

    def _perform(self, action: GatewayAction) -> None:
        self.metrics.performed(action)
        self._performers[type(action)](action)

    def _deliver(self, action: Deliver) -> None:
        failpoint("gateway.tokens.taken")
        self._feedback.produced(action.deliveries, self._outputs.model_of)
        self.console.feed.recent.produced(len(action.deliveries))
        self._outputs.deliver(action.deliveries, self.now())

    def _cancel_tokens(self, action: CancelTokens) -> None:
        self.sink.cancel(action.worker_id, action.stream_ids)

    def _fail(self, action: Fail) -> None:
        request_id, error = action.request_id, action.error
        self._runtime.log.info(
            "request_failed", request_id=request_id, code=error.code.value, error=error.message
        )
        self._outputs.fail(request_id, error)

    def _note_end(self, output: Output, end: str) -> None:
        """Complete the life with what the client saw, and log a line of it."""
        self.console.feed.ended(output, end)
        if self._runtime.config.api_key_file is not None:
            self._calls.ended(output)
        now, text = self.now(), output.text
        life = self._core.lives.shown(
            output.request_id,
            end,
            now,
            first_answer_at=output.answered_at[0] if output.answered_at else None,
            num_reasoning=text.num_reasoning_tokens,
            num_output=text.num_tokens,
        )
        self._told.ended(output, end, life, now)

    def _hand_over(self, request: Request) -> None:
        if request.attempt:
            self._runtime.log.info(
                "request_resubmitted",
                request_id=request.request_id,
                attempt=request.attempt,
                num_output_tokens=len(request.output_token_ids),
            )
        self._link.send(request)
        failpoint("gateway.request.handed")

    async def _find_digest(self, worker_id: str) -> str:
        """Return the digest of a worker's nonce, "" where the store does not say."""
        try:
            members = await self._runtime.store.members("worker")
        except HeadwayError:
            return ""
        found = (m.detail.get(NONCE_DIGEST, "") for m in members if m.member_id == worker_id)
        return next(found, "")

    def _make_console(
        self, config: GatewayConfig, classes: ServiceClasses, keys: KeyRing
    ) -> ConsoleRoutes:
        store, draw = self._runtime.store, self._link.picture
        sight = ClusterSight(config, self._models.only, store, draw, self.now)
        feed = ConsoleFeed(self._core, classes, sight, self._describe, self.now)
        own = OwnWays(config.profile, config.preset, config.policy, config.set)
        desk = WhatIfDesk(
            lambda: feed.recent.last_minutes(self.now()),
            feed.promises,
            own,
            self._link.picture,
            self._models.only,
        )
        return ConsoleRoutes(
            feed, desk, keys, self.unexpected, needs_key=config.api_key_file is not None
        )

    def _stored_responses(self, config: GatewayConfig) -> StoredResponses | None:
        """Return the store of responses, and count it; None where none is kept."""
        if not config.max_stored_bytes:
            return None
        stored = StoredResponses(config.max_stored_bytes, config.stored_response_age, self.now)
        watch = self.metrics.watch
        watch("stored_responses", "Responses that can be continued.", lambda: stored.num_stored)
        watch("stored_bytes", "Their length in JSON.", lambda: stored.num_bytes)
        return stored

    def _describe(self) -> Mapping[str, Any]:
        """Return what the console says of this gateway."""
        config, core = self._runtime.config, self._core
        return {
            **self.health(),
            "id": config.service_id,
            "preset": config.preset,
            "profile": config.profile,
            "open": core.num_open,
            "waiting": core.num_waiting,
        }

    def _watch(self) -> None:
        core, pacers = self._core, self._core.pacers
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("open_requests", "Requests that have not ended.", lambda: core.num_open),
            ("waiting_requests", "Requests without a first token.", lambda: core.num_waiting),
            (
                "running_requests",
                "Requests between their first and their last token.",
                lambda: core.num_open - core.num_waiting,
            ),
            (
                "resubmitted_requests",
                "Attempts beyond the first, since the start.",
                lambda: core.num_resubmitted,
            ),
            ("paced_tokens", "Answering tokens held for their reader.", lambda: pacers.num_paced),
            ("tokens_in_hand", "Answering tokens held now.", lambda: pacers.num_in_hand),
            ("attached_workers", "Workers' token streams.", lambda: self.sink.num_attached),
            (
                "http_connections",
                "HTTP connections that are open.",
                lambda: self._http.bounds.connections.num_taken,
            ),
            (
                "buffered_bytes",
                "Bytes of bodies and unread answers that wait in memory.",
                lambda: self._http.bounds.buffered.num_taken,
            ),
            ("ready", "1 while requests can be served.", lambda: not self._readiness.reasons),
            (
                "scheduler_connected",
                "1 while a scheduler leader listens.",
                lambda: float(self._link.connected),
            ),
        )
        for name, text, value in gauges:
            self.metrics.watch(name, text, value)
        SessionMetrics(core.sessions, self.metrics.registry)
        VllmNames(self.metrics.registry, VLLM_NAMES, ", ".join(self._models.names))

    # --- for the HTTP edge ------------------------------------------------------

    def is_ready(self, model: str = "") -> bool:
        """Return whether requests can be served, and are taken: a model's, or any."""
        if self.grpc_edge.draining or self._readiness.reasons:
            return False
        return self._readiness.serves(model)

    def health(self) -> Mapping[str, Any]:
        """Describe the gateway: whether it can serve, and what is missing, for any model."""
        status = "not ready" if self._readiness.reasons else "ok"
        return {
            "status": "draining" if self.grpc_edge.draining else status,
            "reason": "; ".join(self._readiness.lacks),
            "model": ", ".join(self._models.names),
            "scheduler_connected": self._link.connected,
        }

    async def explain(self, request_id: str) -> list[str]:
        """Return the leader's decisions about a request, as JSON."""
        return await self._link.explain(request_id)

    def life(self, request_id: str) -> LifeRecord | None:
        """Return the life of a request by its own id, None if this gateway does not know it."""
        return self._core.lives.find(request_id, self.now())

    def call(self, asked: str) -> CallLives:
        """Return the lives of the newest call that an id means."""
        return self._core.lives.call(asked, self.now())

    def follow(self, request_id: str, traceparent: str) -> None:
        """Let a request belong to its client's trace, if traces are sent."""
        self._told.follow(request_id, traceparent)

    def lives(self, since: float) -> Iterator[LifeRecord]:
        """Yield the lives that ended at or after an instant, and those that are open."""
        return self._core.lives.since(since, self.now())

    def refused(self, client: str, path: str, error: HeadwayError, *, is_known: bool) -> None:
        """Log who asked in vain, where served requests are logged, too; few lines of strangers."""
        self._told.refused(client, path, error, self.now(), is_known=is_known)

    def unexpected(self, error: Exception, where: str) -> None:
        """Log a bug."""
        self._runtime.log.error("unexpected_error", where=where, error=repr(error), exc_info=error)
