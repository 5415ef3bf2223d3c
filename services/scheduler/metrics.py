"""The scheduler's metrics. Names begin with ``headway_scheduler_``; times are in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from headway.core.scheduler.events import (
    Decision,
    Note,
    SchedulerAction,
    SendToGateway,
    SendToWorker,
)
from headway.core.scheduler.picture import SchedulerStatus
from headway.core.scheduler.prefill import PoolStatus
from headway.messages import Lost, Rejected, Tuned
from services.runtime.on_loop import on_loop
from services.scheduler.prefix_metrics import prefix_metrics

_WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = tuple(i / 10 for i in range(1, 11))

_POOL_GAUGES: tuple[tuple[str, str, Callable[[PoolStatus], float]], ...] = (
    ("active_instances", "Instances that take prefill work (N_active)", lambda p: p.num_active),
    ("waiting_requests", "Requests in the window and at its door", lambda p: p.num_waiting),
    ("throttled_requests", "Requests at the window's door", lambda p: p.num_at_door),
    ("waiting_tokens", "Prompt tokens that wait for a dispatch", lambda p: p.backlog_tokens),
    ("longest_wait_cycles", "Cycles the oldest was left over", lambda p: p.longest_wait_cycles),
    ("interval_seconds", "Dispatch interval (I); +Inf without instance", lambda p: p.interval),
    ("mean_pass_seconds", "Mean forward pass with prefill (T̄)", lambda p: p.mean_pass_time),
    ("dispatch_latency_seconds", "Dispatch round trip (L_net)", lambda p: p.dispatch_latency),
    ("bad_pass_times", "Reported pass times dropped in this term", lambda p: p.num_bad_times),
    ("held_requests", "Waiting requests that wait for their own unit", lambda p: len(p.held)),
)


class SchedulerMetrics:
    """Counters of performed actions; a scrape reads gauges from the leading core, on its loop."""

    def __init__(
        self,
        status: Callable[[], SchedulerStatus | None],
        registry: CollectorRegistry,
        num_closed_links: Callable[[], int] = lambda: 0,
    ) -> None:
        """``num_closed_links``: workers with a lease that this leader has no stream to."""
        self._status = on_loop(status, None)
        self._num_closed_links = num_closed_links
        registry.register(self)
        counter = _counters(registry)
        self._dispatches = counter(
            "dispatches", "Dispatches to workers, by readiness rule", ["rule"]
        )
        self._dispatched = counter("dispatched_requests", "Requests dispatched to workers", [])
        self._moves = counter(
            "moves",
            "Running requests ordered to another unit, to even out load (rescheduling), where "
            "their answer begins (boundary), or off a draining worker (drain)",
            ["cause"],
        )
        self._gamma = Gauge(
            "headway_scheduler_gamma_per_s",
            "Decay of the boost as last sent to the workers (γ-Ada); 0: not sent",
            registry=registry,
        )
        self._handoffs = counter("handoffs", "Handoffs of prefilled requests ordered", [])
        self._notes = counter(
            "events", "Watchdogs, failed handoffs and other events worth a log line", ["event"]
        )
        self._rejections = counter("rejections", "Requests refused, by error code", ["code"])
        self._writes = counter("journal_writes", "Writes of records for the next leader", [])
        self._records = counter(
            "journal_records", "Records in these writes: requests and models", []
        )
        self._lost = counter("lost_requests", "Requests sent back to gateways to try again", [])
        self._waits = Histogram(
            "headway_scheduler_wait_seconds",
            "Seconds a request waited here, for a dispatch or for a decode unit",
            ["question"],
            buckets=_WAITS,
            registry=registry,
        )
        self._utilisation = Histogram(
            "headway_scheduler_chunk_utilisation",
            "Share of the chunks of an instance's units in use after a dispatch",
            buckets=_SHARES,
            registry=registry,
        )

    def wrote(self, num_records: int) -> None:
        """Count the records of one write to the store."""
        self._writes.inc()
        self._records.inc(num_records)

    def performed(self, action: SchedulerAction) -> None:
        """Count one action."""
        if isinstance(action, Decision):
            self._decided(action)
        elif isinstance(action, Note):
            self._notes.labels(action.event).inc()
        elif isinstance(action, SendToWorker):
            if isinstance(action.message, Tuned):
                self._gamma.set(action.message.gamma)
        elif isinstance(action, SendToGateway):
            if isinstance(action.message, Rejected):
                self._rejections.labels(action.message.code.value).inc()
            elif isinstance(action.message, Lost):
                self._lost.inc(len(action.message.keys))

    def _decided(self, decision: Decision) -> None:
        if decision.question in ("rescheduling", "boundary", "drain"):
            self._moves.labels(decision.question).inc(len(decision.chosen))
            return
        waits = self._waits.labels(decision.question)
        for chosen in decision.chosen:
            waits.observe(max(chosen.waited, 0.0))
        if decision.question == "placement":
            self._handoffs.inc(len(decision.chosen))
            return
        self._dispatches.labels(decision.rule).inc()
        self._dispatched.inc(len(decision.chosen))
        self._utilisation.observe(chunk_utilisation(decision))

    def collect(self) -> Iterator[Metric]:
        """Yield the leading core's gauges; none on a standby."""
        status = self._status()
        leads = GaugeMetricFamily("headway_scheduler_leads", "1 while this scheduler leads")
        leads.add_metric([], float(status is not None))
        yield leads
        if status is None:
            return
        for name, text, read in _POOL_GAUGES:
            gauge = GaugeMetricFamily(f"headway_scheduler_{name}", text, labels=["model"])
            for pool in status.pools:
                gauge.add_metric([pool.model], read(pool))
            yield gauge
        yield _constants(status.pools)
        yield from prefix_metrics(status.pools)
        for name, text, value in (
            ("workers", "Workers connected", status.num_workers),
            (
                "closed_worker_links",
                "Workers with a lease that this leader has no stream to",
                self._num_closed_links(),
            ),
            ("tracked_requests", "Requests between submission and their end", status.num_tracked),
            (
                "awaiting_decode",
                "Prefilled requests without a decode unit",
                status.num_awaiting_decode,
            ),
            (
                "held_back_requests",
                "Requests kept out of the window until a worker that may run them has reported",
                status.num_held_back,
            ),
        ):
            yield GaugeMetricFamily(f"headway_scheduler_{name}", text, value=value)


def _constants(pools: Iterable[PoolStatus]) -> Metric:
    """Return the constants that decisions use, each with its source."""
    gauge = GaugeMetricFamily(
        "headway_scheduler_decision_constants",
        "Constants that decisions use (seconds, γ in 1/s, V in tokens/s) and their sources",
        labels=["model", "constant", "source"],
    )
    for pool in pools:
        for name, value, source in pool.constants:
            gauge.add_metric([pool.model, name, source.value], value)
    return gauge


def chunk_utilisation(decision: Decision) -> float:
    """Return the share of an instance's chunks in use after a dispatch, [0, 1]."""
    left = {c.unit: c.load[0] for c in decision.considered}
    left |= {c.unit: int(c.score[0]) for c in decision.chosen}  # the last one of a unit counts
    total = sum(c.load[1] for c in decision.considered)
    return 1.0 - sum(max(tokens, 0) for tokens in left.values()) / total


def _counters(registry: CollectorRegistry) -> Callable[[str, str, list[str]], Counter]:
    def counter(name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"headway_scheduler_{name}", text, labels, registry=registry)

    return counter
