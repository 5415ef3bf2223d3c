"""Spans of OpenTelemetry: a request's life as a trace, sent to a collector over OTLP (HTTP).

Workers tell their gateway what happens to a request, so one trace has the spans of all services.
Each span names the service whose time it was.

The SDK is the extra ``otel``. Without an endpoint it is neither needed nor imported. Names of
attributes are those of vLLM and of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway.errors import Code, HeadwayError
from headway.life.moments import MomentKind
from headway.life.parts import LifePart, PartKind
from headway.life.record import LifeRecord
from services.runtime.telemetry import package_version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Tracer

_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MOST_PARENTS = 65_536
_MOST_SERVICES = 256
_SCHEDULERS = frozenset({PartKind.WINDOW, PartKind.PLACEMENT})
"""Parts in which a request waits for the scheduler."""
_QUEUED = (PartKind.SUBMISSION, PartKind.WINDOW, PartKind.WAY, PartKind.QUEUE)
_TOLD = (MomentKind.PREEMPTED, MomentKind.SWAPS_OUT, MomentKind.LOST)
_EXPORT = 1.0  # seconds for one export: a collector that is gone does not delay the end
_LAST_EXPORT = 5.0  # seconds for what is queued when the gateway ends


class LifeSpans:
    """The sender of spans; ``open_spans`` makes one. Exports happen in a thread of the SDK's."""

    def __init__(
        self,
        processor: SpanProcessor,
        provide: Callable[[Mapping[str, str]], TracerProvider],
        gateway_id: str,
    ) -> None:
        """``provide`` makes the provider of a service from the attributes that name it."""
        self._processor = processor
        self._provide = provide
        self._gateway_id = gateway_id
        self._tracers: dict[tuple[str, str], Tracer] = {}  # by service and instance
        self._parents: dict[str, str] = {}

    @property
    def num_followed(self) -> int:
        """Open requests that belong to their clients' traces."""
        return len(self._parents)

    def follow(self, request_id: str, traceparent: str) -> None:
        """Let a request's span belong to its client's trace (W3C Trace Context).

        What is no ``traceparent`` of version 00 is ignored.
        """
        if not _TRACEPARENT.fullmatch(traceparent):
            return
        self._parents[request_id] = traceparent
        if len(self._parents) > _MOST_PARENTS:
            del self._parents[next(iter(self._parents))]

    def ended(self, request_id: str, life: LifeRecord | None) -> None:
        """Queue the spans of a request's life, if it has one; forget its client's trace."""
        traceparent = self._parents.pop(request_id, "")
        if life is not None:
            self._send(life, traceparent)

    def _send(self, life: LifeRecord, traceparent: str) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        def at(microseconds: int) -> int:
            return round(life.arrival_at * 1e9) + microseconds * 1000

        root = self._tracer("headway", self._gateway_id).start_span(
            "llm_request",
            context=_parent(traceparent),
            kind=SpanKind.SERVER,
            attributes=_attributes(life),
            start_time=at(0),
        )
        for moment in life.moments:
            if moment.kind in _TOLD:
                attributes = {"why": moment.cause, "worker": moment.worker_id}
                root.add_event(moment.kind.name.lower(), attributes, timestamp=at(moment.at))
        within = set_span_in_context(root)
        for part in life.parts:
            span = self._tracer_of(part).start_span(
                part.kind.value,
                context=within,
                attributes={"headway.worker_id": part.worker_id},
                start_time=at(part.begin),
            )
            span.end(at(part.end))
        if life.error:
            root.set_status(Status(StatusCode.ERROR, life.error))
        root.end(at(life.total))

    def _tracer_of(self, part: LifePart) -> Tracer:
        """Return the tracer of the service whose time a part was."""
        if part.kind in _SCHEDULERS:
            return self._tracer("headway-scheduler", "")
        if part.worker_id:
            return self._tracer("headway-worker", part.worker_id)
        return self._tracer("headway", self._gateway_id)

    def _tracer(self, service: str, instance_id: str) -> Tracer:
        """Return a tracer of a service; all of them share one queue to the collector."""
        known = self._tracers.get((service, instance_id))
        if known is not None:
            return known
        version = package_version()
        attributes = {"service.name": service, "service.version": version}
        if instance_id:
            attributes["service.instance.id"] = instance_id
        provider = self._provide(attributes)
        provider.add_span_processor(self._processor)
        if len(self._tracers) >= _MOST_SERVICES:  # workers come and go
            self._tracers.clear()
        tracer = self._tracers[service, instance_id] = provider.get_tracer("headway", version)
        return tracer

    async def close(self) -> None:
        """Send what is queued, and stop."""
        await asyncio.to_thread(self._processor.force_flush, round(_LAST_EXPORT * 1000))
        await asyncio.to_thread(self._processor.shutdown)


def open_spans(endpoint: str, gateway_id: str) -> LifeSpans | None:
    """Return the sender to a collector's URL, None without one.

    FAILED_PRECONDITION where the SDK is not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"--otlp-traces-endpoint needs {error.name}: pip install 'headway[otel]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error

    def provide(attributes: Mapping[str, str]) -> TracerProvider:
        return TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)

    exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT)
    return LifeSpans(BatchSpanProcessor(exporter), provide, gateway_id)


def _parent(traceparent: str) -> Context | None:
    if not traceparent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _attributes(life: LifeRecord) -> dict[str, Any]:
    tokens = life.tokens
    return {
        "gen_ai.provider.name": "headway",
        "gen_ai.system": "headway",  # its name before
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.id": life.request_id,
        "gen_ai.request.model": life.model,
        "gen_ai.response.model": life.model,
        "gen_ai.response.finish_reasons": [life.status],
        "gen_ai.usage.prompt_tokens": tokens.prompt,
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.completion_tokens": tokens.output,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.latency.e2e": life.total / 1e6,
        "gen_ai.latency.time_in_queue": _spent(life, *_QUEUED),
        "gen_ai.latency.time_in_model_prefill": _spent(life, PartKind.PREFILL),
        "gen_ai.latency.time_in_model_decode": _spent(life, PartKind.DECODE),
        **({} if life.ttft is None else {"gen_ai.latency.time_to_first_token": life.ttft}),
        "headway.tenant": life.tenant,
        "headway.class": life.service_class,
    }


def _spent(life: LifeRecord, *kinds: PartKind) -> float:
    return sum(part.seconds for part in life.parts if part.kind in kinds)
