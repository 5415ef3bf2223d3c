"""A worker's Prometheus metrics, updated once a pass or report."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway.core.worker.plan import Preemptions
from headway.core.worker.unit import PrefixCounts
from headway.forward_pass import ForwardPass
from headway.messages import EndForward, Tuned

_PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_MISSED_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


class WorkerMetrics:
    """Names begin with ``headway_worker_``; units are in the names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._passes = Counter(
            "headway_worker_forward_passes", "Forward passes started", registry=registry
        )
        self._tokens = Counter(
            "headway_worker_computed_tokens",
            "Tokens computed, by phase",
            ["phase"],
            registry=registry,
        )
        self._pass_time = Histogram(
            "headway_worker_forward_pass_seconds",
            "Duration of reported forward passes, seconds",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self._finished = Counter(
            "headway_worker_finished_requests", "Requests ended here", ["reason"], registry=registry
        )
        self._running = Gauge(
            "headway_worker_running_requests", "Requests decoding", ["unit"], registry=registry
        )
        self._queued = Gauge(
            "headway_worker_queued_prefill_tokens",
            "Prompt tokens accepted, not computed",
            ["unit"],
            registry=registry,
        )
        self._kv_tokens = Gauge(
            "headway_worker_kv_tokens", "Tokens whose KV is held", ["unit"], registry=registry
        )
        self._host_tokens = Gauge(
            "headway_worker_host_kv_tokens",
            "Tokens whose KV waits in host memory",
            ["unit"],
            registry=registry,
        )
        self._free_blocks = Gauge(
            "headway_worker_free_kv_blocks", "KV blocks free", ["unit"], registry=registry
        )

        self._asked = Counter(
            "headway_worker_prefix_asked_tokens",
            "Tokens of admitted requests, looked for in the prefix cache",
            registry=registry,
        )
        self._hit = Counter(
            "headway_worker_prefix_hit_tokens",
            "Tokens of admitted requests that the prefix cache had",
            registry=registry,
        )
        self._counted = PrefixCounts()
        self._preemptions = Counter(
            "headway_worker_preemptions",
            "Requests whose blocks were taken, for a better one (voluntary) or by need (forced)",
            ["kind"],
            registry=registry,
        )
        self._counted_preemptions = (0, 0)
        self._reasoning = Gauge(
            "headway_worker_reasoning_requests",
            "Requests that reason; 0 unless the scheduler's policies read it",
            ["unit"],
            registry=registry,
        )
        self._gamma = Gauge(
            "headway_worker_gamma_per_s",
            "Decay of the boost as the scheduler said last (γ-Ada); 0: it said nothing",
            registry=registry,
        )
        self.num_passes = 0
        self._pause = Histogram(
            "headway_worker_move_pause_seconds",
            "From a moving request's stop here until it runs at its target, seconds",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self._missed = Histogram(
            "headway_worker_move_pause_tokens",
            "Forward passes that began here meanwhile: tokens that its client waited for",
            buckets=_MISSED_BUCKETS,
            registry=registry,
        )

    def pass_started(self, forward_pass: ForwardPass) -> None:
        """Count a pass and its tokens."""
        num_tokens = sum(len(item.token_ids) for item in forward_pass.items)
        num_decode = sum(
            1 for item in forward_pass.items if item.sample and len(item.token_ids) == 1
        )
        self.num_passes += 1
        self._passes.inc()
        self._tokens.labels("decode").inc(num_decode)
        self._tokens.labels("prefill").inc(num_tokens - num_decode)

    def moved(self, pause: float, num_missed: int) -> None:
        """A request has moved away; ``pause`` in seconds."""
        self._pause.observe(pause)
        self._missed.observe(num_missed)

    def prefixes(self, counts: PrefixCounts) -> None:
        """Show what the prefix cache had, since the start."""
        self._asked.inc(counts.num_asked_tokens - self._counted.num_asked_tokens)
        self._hit.inc(counts.num_hit_tokens - self._counted.num_hit_tokens)
        self._counted = counts

    def preempted(self, preemptions: Preemptions) -> None:
        """Show who lost its blocks, since the start."""
        counts = (preemptions.num_voluntary, preemptions.num_forced)
        for kind, now, before in zip(
            ("voluntary", "forced"), counts, self._counted_preemptions, strict=True
        ):
            self._preemptions.labels(kind).inc(now - before)
        self._counted_preemptions = counts

    def tuned(self, tuned: Tuned) -> None:
        """The scheduler has fitted γ."""
        self._gamma.set(tuned.gamma)

    def reported(self, report: EndForward) -> None:
        """Show what the scheduler is told."""
        if report.pass_time > 0.0:
            self._pass_time.observe(report.pass_time)
        for finished in report.finished:
            self._finished.labels(finished.finish_reason.value).inc()
        for load in report.loads:
            unit = str(load.unit)
            self._running.labels(unit).set(load.num_running)
            self._queued.labels(unit).set(load.queued_prefill_tokens)
            self._kv_tokens.labels(unit).set(load.kv_tokens)
            self._host_tokens.labels(unit).set(load.host_tokens)
            self._reasoning.labels(unit).set(load.num_reasoning)
            self._free_blocks.labels(unit).set(load.num_free_blocks)


class PredictionMetrics:
    """Of remaining lengths asked from the predictor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.predicted = Counter(
            "headway_worker_predictions", "Remaining lengths predicted", registry=registry
        )
        self.dropped = Counter(
            "headway_worker_dropped_predictions",
            "Passes whose hidden states were dropped: the predictor is too slow",
            registry=registry,
        )
        self.failed = Counter(
            "headway_worker_failed_predictions",
            "Calls to the predictor that failed",
            ["code"],
            registry=registry,
        )
        self.latency = Histogram(
            "headway_worker_prediction_seconds",
            "Duration of calls to the predictor, seconds",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
