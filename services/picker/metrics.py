"""The picker's figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway.core.picker.events import EndpointStatus, Pick, Refuse

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class PickerMetrics:
    """Counts of answers, and gauges of endpoints; times in seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._picks = Counter(
            "headway_picker_picks", "Requests that got an endpoint.", ["rule"], registry=registry
        )
        self._refusals = Counter(
            "headway_picker_refusals", "Requests without one.", ["reason"], registry=registry
        )
        self._waits = Histogram(
            "headway_picker_wait_seconds",
            "From a request's last byte to its answer.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._waiting = Gauge("headway_picker_waiting", "Requests held.", registry=registry)
        self._by_rule: dict[str, Counter] = {}
        labels = ["endpoint"]
        self._up = Gauge("headway_picker_endpoint_up", "1 if up.", labels, registry=registry)
        self._requests = Gauge(
            "headway_picker_endpoint_requests", "Requests there.", labels, registry=registry
        )
        self._owed = Gauge(
            "headway_picker_endpoint_owed_tokens",
            "Prompt tokens that it still has to compute.",
            labels,
            registry=registry,
        )
        self._ends = Gauge(
            "headway_picker_endpoint_ends",
            "1 for how the ends of its passes are known: exact, inferred or guessed.",
            ["endpoint", "ends"],
            registry=registry,
        )

    def answered(self, answer: Pick | Refuse, waited: float) -> None:
        """Count an answer, given after so many seconds."""
        self._waits.observe(waited)
        if isinstance(answer, Pick):
            counter = self._by_rule.get(answer.rule)
            if counter is None:
                counter = self._by_rule[answer.rule] = self._picks.labels(answer.rule)
            counter.inc()
        else:
            self._refusals.labels(answer.reason.value).inc()

    def look(self, endpoints: list[EndpointStatus], num_waiting: int) -> None:
        """Set the gauges."""
        self._waiting.set(num_waiting)
        for gauge in (self._up, self._requests, self._owed, self._ends):
            gauge.clear()
        for each in endpoints:
            self._up.labels(each.address).set(each.health == "up")
            self._requests.labels(each.address).set(each.num_requests)
            self._owed.labels(each.address).set(each.owed_tokens)
            self._ends.labels(each.address, each.ends.value).set(1)
