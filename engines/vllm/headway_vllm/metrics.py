"""Metrics of the order within a plain vLLM, on a port of its engine's process.

vLLM's own are those of its HTTP server, which is another process and knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.errors import Code, HeadwayError
from headway.policies.readers import constants_of

LOOPBACK = "127.0.0.1"


class OrderMetrics(Collector):
    """Counts and constants of a scheduler's order, read when they are asked for."""

    def __init__(self, scheduler: Any) -> None:
        """``scheduler``: an ``OrderedScheduler``."""
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Names begin with ``headway_vllm_``; units are in the names."""
        scheduler, order = self._scheduler, self._scheduler.headway
        preemptions = CounterMetricFamily(
            "headway_vllm_preemptions", "Requests that lost their blocks", labels=["kind"]
        )
        preemptions.add_metric(["voluntary"], order.num_voluntary)
        preemptions.add_metric(["forced"], order.num_forced)
        yield preemptions
        for name, said, value in (
            ("pauses", "Steps that a prompt sat out for better ones", order.num_paused),
            ("steps", "Steps planned", scheduler.headway_steps),
            ("order_seconds", "Seconds spent on the order", scheduler.headway_seconds),
        ):
            yield CounterMetricFamily(f"headway_vllm_{name}", said, value=value)
        if hasattr(order.policy, "gamma"):
            said = "The policy's gamma, fitted here unless it is given"
            yield GaugeMetricFamily("headway_vllm_gamma_per_s", said, value=order.policy.gamma)
        constants = GaugeMetricFamily(
            "headway_vllm_decision_constants",
            "Constants that the policy uses, in seconds",
            labels=["constant", "source"],
        )
        for name, value, source in constants_of(order.policy):
            constants.add_metric([name, source.value], value)
        yield constants


def serve_metrics(scheduler: Any, address: str) -> None:
    """Serve the metrics at ``host:port``, or at a port of loopback.

    Ranks of data parallelism take the ports behind it. HeadwayError (UNAVAILABLE) for one that
    cannot be had.
    """
    host, _, port = address.rpartition(":")
    number = int(port) + scheduler.vllm_config.parallel_config.data_parallel_index
    registry = CollectorRegistry()
    registry.register(OrderMetrics(scheduler))
    try:
        start_http_server(number, host.strip("[]") or LOOPBACK, registry)
    except (OSError, OverflowError) as error:
        message = f"HEADWAY_VLLM: metrics cannot be served at {host or LOOPBACK}:{number}: {error}"
        raise HeadwayError(Code.UNAVAILABLE, message) from error
