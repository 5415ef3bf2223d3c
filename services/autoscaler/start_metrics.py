"""Metrics of start-up times."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

from headway.core.autoscaler.starts import StartsReport

_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)


class StartMetrics:
    """Seconds from order to ready, by role, and by whether the instance was a standby."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "headway_autoscaler_start_up_seconds",
            "Seconds from an instance's order to ready",
            ["role", "warm"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._num_standby = Gauge(
            "headway_autoscaler_standby_instances",
            "Instances that are loaded and warm, without a role",
            registry=registry,
        )

    def add(self, report: StartsReport) -> None:
        """Observe the new starts and the number of standbys."""
        self._num_standby.set(report.num_standby)
        for start in report.starts:
            self._seconds.labels(start.role, str(start.warm).lower()).observe(start.seconds)
