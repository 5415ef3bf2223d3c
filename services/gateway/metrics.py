"""What the gateway measures. Names begin with ``headway_gateway_``; times are in seconds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headway.core.gateway.events import Pause
from headway.qoe import qoe

_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_QOE = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
_MISSED = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)


class GatewayMetrics:
    """Counting is cheap: what is counted per request or batch has its labels looked up once.

    ``reader_pace``: seconds in which a reader takes a token.
    """

    def __init__(self, registry: CollectorRegistry, reader_pace: float) -> None:
        self.registry = registry
        self._reader_pace = reader_pace
        self._requests = Counter(
            "headway_gateway_requests",
            "Outputs by how they ended (stop, length, cancelled, error).",
            ["end"],
            registry=registry,
        )
        self._errors = Counter(
            "headway_gateway_errors",
            "Requests that were refused or failed, by error code.",
            ["code"],
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "headway_gateway_prompt_tokens", "Prompt tokens of finished outputs.", registry=registry
        )
        self._output_tokens = Counter(
            "headway_gateway_output_tokens",
            "Output tokens received from workers.",
            registry=registry,
        )
        self._ttft = Histogram(
            "headway_gateway_ttft_seconds",
            "Seconds from a request's arrival to its first token.",
            buckets=_LATENCY,
            registry=registry,
        )
        self._tpot = Histogram(
            "headway_gateway_tpot_seconds",
            "Seconds per output token after the first, averaged over an output.",
            buckets=_PER_TOKEN,
            registry=registry,
        )
        self._e2e = Histogram(
            "headway_gateway_e2e_seconds",
            "Seconds from a request's arrival to its last token.",
            buckets=_LATENCY,
            registry=registry,
        )
        self._ttfat = Histogram(
            "headway_gateway_ttfat_seconds",
            "Seconds from a request's arrival to its first answering token.",
            buckets=_LATENCY,
            registry=registry,
        )
        self._qoe = Histogram(
            "headway_gateway_qoe",
            "QoE of streamed answers from their first token on: share of the reading that was due.",
            buckets=_QOE,
            registry=registry,
        )
        self._bursts = Counter(
            "headway_gateway_burst_requests",
            "Requests that came beyond what the running mean of traffic brings.",
            registry=registry,
        )
        self._reasoning_tokens = Counter(
            "headway_gateway_reasoning_tokens",
            "Reasoning tokens of finished outputs, their markers included.",
            registry=registry,
        )
        self._feedback_failures = Counter(
            "headway_gateway_feedback_failures",
            "Reports to the predictor or the autoscaler that did not arrive.",
            ["service"],
            registry=registry,
        )
        self._slow_clients = Counter(
            "headway_gateway_slow_clients",
            "Streams that were cut off because their client did not read.",
            registry=registry,
        )
        self._pause = Histogram(
            "headway_gateway_move_pause_seconds",
            "Seconds between a moved request's last token from one worker and the next's first.",
            buckets=_LATENCY,
            registry=registry,
        )
        self._missed = Histogram(
            "headway_gateway_move_pause_tokens",
            "Tokens that a moved request would have had meanwhile, at its pace until then.",
            buckets=_MISSED,
            registry=registry,
        )
        self._ends = {end: self._requests.labels(end) for end in _ENDS}

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        gauge = Gauge(f"headway_gateway_{name}", text, registry=self.registry)
        gauge.set_function(value)

    def tokens(self, count: int) -> None:
        """So many output tokens came in."""
        self._output_tokens.inc(count)

    def finished(
        self, end: str, num_prompt_tokens: int, num_output_tokens: int, times: tuple[float, ...]
    ) -> None:
        """An output ended; ``times`` are arrival, first token and last token."""
        self._ends[end].inc()
        if end not in ("stop", "length") or num_output_tokens == 0:
            return
        arrival_at, first_at, last_at = times
        self._prompt_tokens.inc(num_prompt_tokens)
        self._ttft.observe(first_at - arrival_at)
        self._e2e.observe(last_at - arrival_at)
        if num_output_tokens > 1:
            self._tpot.observe((last_at - first_at) / (num_output_tokens - 1))

    def answered(
        self, arrival_at: float, answered_at: array[float], num_reasoning_tokens: int
    ) -> None:
        """A finished output's phases: instants of its answering tokens, or of the first alone."""
        self._reasoning_tokens.inc(num_reasoning_tokens)
        if answered_at:
            self._ttfat.observe(answered_at[0] - arrival_at)
        if len(answered_at) > 1:
            self._qoe.observe(qoe(np.frombuffer(answered_at), self._reader_pace))

    def burst(self) -> None:
        """A request was labelled as a burst's."""
        self._bursts.inc()

    def error(self, code: str) -> None:
        """A request was refused or failed."""
        self._errors.labels(code).inc()

    def feedback_failed(self, service: str) -> None:
        """A report did not arrive."""
        self._feedback_failures.labels(service).inc()

    def moved(self, pauses: Iterable[Pause]) -> None:
        """Requests have moved from one worker to another while their clients read."""
        for pause in pauses:
            self._pause.observe(pause.seconds)
            self._missed.observe(pause.num_tokens)

    def slow_client(self) -> None:
        """A client was cut off because it did not read."""
        self._slow_clients.inc()

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


_ENDS = ("stop", "length", "cancelled", "error")
