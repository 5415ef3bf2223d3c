"""Metrics of sessions, read from the core when they are asked for; no label names a session."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headway.core.gateway.sessions import Sessions, SizeCounts


class SessionMetrics:
    """A collector of one gateway's sessions."""

    def __init__(self, sessions: Sessions, registry: CollectorRegistry) -> None:
        self._sessions = sessions
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield how many sessions there are and were, how long, and what of them was cached."""
        sessions = self._sessions
        kept = GaugeMetricFamily(
            "headway_gateway_open_sessions",
            "Sessions with a running turn, and idle ones that may go on.",
            labels=["state"],
        )
        kept.add_metric(["running"], sessions.num_running)
        kept.add_metric(["idle"], sessions.num_idle)
        yield kept
        over = CounterMetricFamily(
            "headway_gateway_sessions",
            "Sessions that are over, by reason (client, idle, dropped).",
            labels=["end"],
        )
        for end, count in sessions.num_over.items():
            over.add_metric([end], count)
        yield over
        yield _histogram("session_turns", "Turns of sessions that are over.", sessions.turns)
        pauses = "Seconds from the end of a session's turn to its next one."
        yield _histogram("session_pause_seconds", pauses, sessions.pauses)
        tasks = "Seconds from a session's first turn to the end of its last, once it is over."
        yield _histogram("session_task_seconds", tasks, sessions.tasks)
        yield self._prompt_tokens()

    def _prompt_tokens(self) -> Metric:
        tokens = CounterMetricFamily(
            "headway_gateway_session_prompt_tokens",
            "Prompt tokens of sessions' outputs, by turn (first, later) and if they were cached.",
            labels=["turn", "cached"],
        )
        for (is_first, is_cached), count in self._sessions.prompt_tokens.items():
            labels = ["first" if is_first else "later", "yes" if is_cached else "no"]
            tokens.add_metric(labels, count)
        return tokens


def _histogram(name: str, text: str, tally: SizeCounts) -> Metric:
    bounds = (*tally.bounds, inf)
    buckets = [
        (str(bound) if bound < inf else "+Inf", count)
        for bound, count in zip(bounds, tally.cumulated, strict=True)
    ]
    family = HistogramMetricFamily(f"headway_gateway_{name}", text)
    family.add_metric([], buckets, tally.total)
    return family
