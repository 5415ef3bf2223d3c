"""The gateway: HTTP and gRPC calls into events, actions into replies, submissions and cancels."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headway.core.gateway.core import GatewayCore, GatewaySettings
from headway.core.gateway.events import (
    CancelTokens,
    Deliver,
    Fail,
    GatewayAction,
    GatewayEvent,
    Release,
    Submit,
)
from headway.errors import Code, HeadwayError
from headway.request import Request
from services.gateway.auth import KeyRing
from services.gateway.calls import Calls, ServedModel
from services.gateway.config import GatewayConfig
from services.gateway.feedback import Feedback
from services.gateway.grpc_edge import GatewayEdge
from services.gateway.http.edge import HttpEdge
from services.gateway.http.server import HttpServer, tls_context
from services.gateway.metrics import GatewayMetrics
from services.gateway.model_files import read_model
from services.gateway.outputs import Outputs
from services.gateway.scheduler_link import SchedulerLink
from services.gateway.token_sink import TokenSink
from services.gateway.tokenizer import TextCodec
from services.runtime.driver import Driver
from services.runtime.service import Runtime

_STREAM_IDS_PER_S = 1_000_000  # ids begin at the epoch time in µs: above all of an earlier life


class GatewayService:
    """The shell around :class:`GatewayCore`."""

    def __init__(self, runtime: Runtime[GatewayConfig]) -> None:
        self._runtime = runtime
        self._config = config = runtime.config
        self._log = runtime.log
        self._draining = False
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")
        self._policies = config.policies()
        self.metrics = GatewayMetrics(runtime.metrics, self._policies.worker.reader_pace)
        self._model = load_model(config)
        self._feedback = Feedback(
            config, self._model.name, runtime.store, self.metrics, runtime.clock.now
        )
        self._outputs = Outputs(
            self.metrics, self._release, self._feedback.observe, self.unexpected
        )
        self._calls = Calls(self._model, self._outputs, self._submit, self._feedback.predict)
        keys = KeyRing.load(config.api_key_file)
        self.sink = TokenSink(self._post)
        self.grpc_edge = GatewayEdge(
            self._calls, self._outputs, keys, self.metrics, self.now, self._executor
        )
        self._http_edge = HttpEdge(
            self._calls,
            self._outputs,
            keys,
            self.metrics,
            self,
            self._executor,
            fingerprint=_fingerprint(self._model),
            monitoring_needs_key=config.monitoring_needs_key,
        )
        self.http_address = ""

    # --- life -------------------------------------------------------------------------

    async def start(self) -> None:
        """Follow the scheduler; then let clients in."""
        config, address = self._config, self._runtime.address
        policies, markers = self._policies, self._model.codec.markers
        settings = GatewaySettings(
            max_model_len=self._model.max_model_len,
            max_waiting=config.max_waiting,
            request_timeout=config.request_timeout,
            burst=policies.burst.name,
            burst_params=policies.burst.params,
            pacing=policies.pacing.name,
            pacing_params=policies.pacing.params,
            end_of_reasoning=() if markers is None else (markers.end_id,),
            start_of_reasoning=() if markers is None else (markers.start_id,),
        )
        first_stream_id = int(self.now() * _STREAM_IDS_PER_S)
        self._core = GatewayCore(
            config.service_id, address, settings, first_stream_id=first_stream_id
        )
        self._driver: Driver[GatewayEvent, GatewayAction] = Driver(
            self._core, self._perform, self._runtime.clock
        )
        self._link = SchedulerLink(config, address, self._runtime.store, self._post)
        self._watch()
        self._link.start()
        self._feedback.start()
        self._http = HttpServer(self._http_edge, config.http_limits())
        tls = None
        if config.http_tls_cert is not None and config.http_tls_key is not None:
            tls = tls_context(config.http_tls_cert, config.http_tls_key)
        host, port = await self._http.start(config.http_host, config.http_port, tls)
        self.http_address = f"{host}:{port}"
        self._log.info(
            "http_listening",
            url=f"{'https' if tls else 'http'}://{self.http_address}",
            model=self._model.name,
            max_model_len=self._model.max_model_len,
        )

    def member(self) -> Mapping[str, Any]:
        """What the membership says of this gateway."""
        return {"model": self._model.name, "detail": {"http": self.http_address}}

    async def drain(self) -> None:
        """Take nothing new; let what runs finish."""
        self._draining = self.grpc_edge.draining = True
        await self._http.drain(self._config.drain_timeout)
        while self._core.num_open:  # noqa: ASYNC110 (gRPC's clients; the core knows no events)
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End every stream."""
        self._http.stop()
        self.sink.close()
        await self._feedback.stop()
        await self._link.stop()
        self._driver.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self._core.num_open

    # --- events and actions -----------------------------------------------------------

    def _post(self, event: GatewayEvent) -> None:
        self._driver.post(event)

    def _submit(self, submit: Submit) -> None:
        self._feedback.arrived(len(submit.prompt_token_ids))
        self._driver.post(submit)

    def _release(self, request_id: str) -> None:
        self._post(Release(request_id))

    def _perform(self, action: GatewayAction) -> None:
        if isinstance(action, Deliver):
            self.metrics.moved(action.pauses)
            self._feedback.produced(len(action.deliveries))
            self._outputs.deliver(action.deliveries, self.now())
        elif isinstance(action, CancelTokens):
            self.sink.cancel(action.worker_id, action.stream_ids)
        elif isinstance(action, Fail):
            self._log.info(
                "request_failed",
                request_id=action.request_id,
                code=action.error.code.value,
                error=action.error.message,
            )
            self._outputs.fail(action.request_id, action.error)
        else:
            if isinstance(action, Request) and action.is_burst and not action.attempt:
                self.metrics.burst()
            if isinstance(action, Request) and action.attempt:
                self._log.info(
                    "request_resubmitted",
                    request_id=action.request_id,
                    attempt=action.attempt,
                    num_output_tokens=len(action.output_token_ids),
                )
            self._link.send(action)

    def _watch(self) -> None:
        core, watch = self._core, self.metrics.watch
        watch("open_requests", "Requests that have not ended.", lambda: core.num_open)
        watch("waiting_requests", "Requests without a first token.", lambda: core.num_waiting)
        watch(
            "running_requests",
            "Requests between their first and their last token.",
            lambda: core.num_open - core.num_waiting,
        )
        watch(
            "resubmitted_requests",
            "Attempts beyond the first, since the start.",
            lambda: core.num_resubmitted,
        )
        pacers = core.pacers
        watch("paced_tokens", "Answering tokens held for their reader.", lambda: pacers.num_paced)
        watch("tokens_in_hand", "Answering tokens held now.", lambda: pacers.num_in_hand)
        watch("attached_workers", "Workers' token streams.", lambda: self.sink.num_attached)
        watch(
            "scheduler_connected",
            "1 while a scheduler leader listens.",
            lambda: float(self._link.connected),
        )

    # --- what the HTTP edge asks ------------------------------------------------------

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._runtime.clock.now()

    def health(self) -> Mapping[str, Any]:
        """For ``/health``: up unless draining; a missing scheduler is said, not fatal."""
        return {
            "status": "draining" if self._draining else "ok",
            "model": self._model.name,
            "scheduler_connected": self._link.connected,
        }

    async def explain(self, request_id: str) -> list[str]:
        """For ``/explain/…``: the leader's decisions about a request, as JSON."""
        return await self._link.explain(request_id)

    def unexpected(self, error: Exception, where: str) -> None:
        """Log a bug."""
        self._log.error("unexpected_error", where=where, error=repr(error), exc_info=error)


def load_model(config: GatewayConfig) -> ServedModel:
    """Tokenizer, template and limits; INVALID_ARGUMENT where they do not serve."""
    files = read_model(config.model, config.model_name)
    own, asked = files.max_model_len, config.max_model_len
    if own and asked > own:
        message = f"max_model_len is {asked}; the model's limit is {own}: ask for less"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_model_len")
    if not own and not asked:
        message = f"the model in {files.folder} does not say its context length: give max_model_len"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_model_len")
    codec = TextCodec.load(files.folder, files.vocab_size)
    return ServedModel(files, codec, asked or own)


def _fingerprint(model: ServedModel) -> str:
    said = f"{model.name}:{model.max_model_len}:{model.codec.vocab_size}"
    return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:10]}"
