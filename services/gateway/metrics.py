"""The gateway's metrics. A new one is a line in a table here and a call where it happens."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from headway.core.gateway.events import Deliver, GatewayAction
from headway.metrics import qoe
from headway.request import Request
from services.gateway.standing_metrics import StandingMetrics

_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_QOE = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
_MISSED = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_MOST_EXEMPLAR_CHARS = 118  # OpenMetrics: 128 with the label's name
_ENDS = ("stop", "length", "cancelled", "error")

# Every name begins with headway_gateway_. Counters: name, help text, labels.
_COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("requests", "Outputs by how they ended (stop, length, cancelled, error).", ("end",)),
    ("errors", "Requests that were refused or failed, by error code.", ("code",)),
    ("prompt_tokens", "Prompt tokens of finished outputs.", ()),
    (
        "cached_prompt_tokens",
        "Prompt tokens that a prefix cache had, in either tier; of a call's choices the first's.",
        (),
    ),
    ("output_tokens", "Output tokens received from workers.", ()),
    ("reasoning_tokens", "Reasoning tokens of finished outputs, their markers included.", ()),
    (
        "burst_requests",
        "Requests in excess of the running mean of traffic.",
        (),
    ),
    (
        "feedback_failures",
        "Reports to the predictor or the autoscaler that did not arrive.",
        ("service",),
    ),
    ("slow_clients", "Streams that were cut off because their client did not read.", ()),
)
# Histograms: name, help text, bounds of the buckets.
_HISTOGRAMS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("ttft_seconds", "Seconds from a request's arrival to its first token.", _LATENCY),
    (
        "tpot_seconds",
        "Seconds per output token after the first, averaged over an output.",
        _PER_TOKEN,
    ),
    ("e2e_seconds", "Seconds from a request's arrival to its last token.", _LATENCY),
    ("ttfat_seconds", "Seconds from a request's arrival to its first answering token.", _LATENCY),
    (
        "qoe",
        "QoE of streamed answers from their first token on: share of the reading that was due.",
        _QOE,
    ),
    (
        "move_pause_seconds",
        "Seconds between a moved request's last token from one worker and the next's first.",
        _LATENCY,
    ),
    (
        "move_pause_tokens",
        "Tokens that a moved request would have had during the pause, at its previous pace.",
        _MISSED,
    ),
)

VLLM_NAMES = {
    f"headway_gateway_{name}": f"vllm:{theirs}"
    for name, theirs in (
        ("running_requests", "num_requests_running"),
        ("waiting_requests", "num_requests_waiting"),
        ("ttft_seconds", "time_to_first_token_seconds"),
        ("tpot_seconds", "request_time_per_output_token_seconds"),
        ("e2e_seconds", "e2e_request_latency_seconds"),
        ("prompt_tokens", "prompt_tokens"),
        ("output_tokens", "generation_tokens"),
    )
}
"""vLLM's names of some of them, by ours."""


class GatewayMetrics:
    """All metrics of a gateway. ``reader_pace``: seconds a reader takes per token."""

    def __init__(self, registry: CollectorRegistry, reader_pace: float) -> None:
        self.registry = registry
        self._reader_pace = reader_pace
        self._counters = {
            name: Counter(f"headway_gateway_{name}", text, labels, registry=registry)
            for name, text, labels in _COUNTERS
        }
        self._histograms = {
            name: Histogram(f"headway_gateway_{name}", text, buckets=bounds, registry=registry)
            for name, text, bounds in _HISTOGRAMS
        }
        self.standings = StandingMetrics(registry)
        # Counted per request: the labels are looked up once.
        self._ends = {end: self._counters["requests"].labels(end) for end in _ENDS}

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when it is asked for."""
        gauge = Gauge(f"headway_gateway_{name}", text, registry=self.registry)
        gauge.set_function(value)

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Raise a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def performed(self, action: GatewayAction) -> None:
        """Count the pauses and bursts in an action of the core."""
        if isinstance(action, Deliver):
            for pause in action.pauses:
                self._histograms["move_pause_seconds"].observe(pause.seconds)
                self._histograms["move_pause_tokens"].observe(pause.num_tokens)
        elif isinstance(action, Request) and action.is_burst and not action.attempt:
            self.count("burst_requests")

    def finished(
        self,
        end: str,
        num_prompt_tokens: int,
        num_output_tokens: int,
        times: tuple[float, ...],
        request_id: str = "",
    ) -> None:
        """Count an output that ended; ``times`` are arrival, first token and last token."""
        self._ends[end].inc()
        if end not in ("stop", "length") or num_output_tokens == 0:
            return
        arrival_at, first_at, last_at = times
        self.count("prompt_tokens", by=num_prompt_tokens)
        named = {"request_id": request_id[:_MOST_EXEMPLAR_CHARS]}
        self._histograms["ttft_seconds"].observe(first_at - arrival_at, named)
        self._histograms["e2e_seconds"].observe(last_at - arrival_at, named)
        if num_output_tokens > 1:
            per_token = (last_at - first_at) / (num_output_tokens - 1)
            self._histograms["tpot_seconds"].observe(per_token)

    def answered(
        self, arrival_at: float, answered_at: array[float], num_reasoning_tokens: int
    ) -> None:
        """Count a finished output's phases, from its answering tokens' instants (or the first)."""
        self.count("reasoning_tokens", by=num_reasoning_tokens)
        if answered_at:
            self._histograms["ttfat_seconds"].observe(answered_at[0] - arrival_at)
        if len(answered_at) > 1:
            self._histograms["qoe"].observe(qoe(np.frombuffer(answered_at), self._reader_pace))

    def render(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def render_with_exemplars(self) -> bytes:
        """Write all metrics as OpenMetrics: buckets of latencies name the newest request."""
        written: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
        return written
