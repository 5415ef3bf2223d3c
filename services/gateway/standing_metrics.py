"""Figures by tenant and by class; their labels are bounded by the key file and the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from headway.service_class import ServiceClass, Standing

MOST_TENANTS = 200
"""Tenants with a label of their own; further ones are counted as ``other``."""
_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_PER_TOKEN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_TIMES = (
    ("ttft", "Seconds to the first token, by class.", _BOUNDS),
    ("ttfat", "Seconds to the first answering token, by class.", _BOUNDS),
    ("tpot", "Seconds per output token after the first, by class.", _PER_TOKEN),
    ("e2e", "Seconds to the last token, by class.", _BOUNDS),
)


class StandingMetrics:
    """Usage of tenants, and how the promises to classes are kept."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Counter(
            "headway_gateway_tenant_tokens",
            "Tokens of ended outputs by tenant and kind (prompt, output).",
            ("tenant", "kind"),
            registry=registry,
        )
        self._requests = Counter(
            "headway_gateway_tenant_requests",
            "Outputs by tenant and how they ended.",
            ("tenant", "end"),
            registry=registry,
        )
        self._promises = Counter(
            "headway_gateway_class_promises",
            "Promises by class, which promise (ttft, ttfat, tpot, deadline), and if it was kept.",
            ("service_class", "promise", "kept"),
            registry=registry,
        )
        self._times = {
            name: Histogram(
                f"headway_gateway_class_{name}_seconds",
                text,
                ("service_class",),
                buckets=bounds,
                registry=registry,
            )
            for name, text, bounds in _TIMES
        }
        self._tenants: dict[str, None] = {}

    def ended(self, standing: Standing, end: str, num_tokens: tuple[int, int]) -> None:
        """Count an output that ended, with its tokens of (prompt, output)."""
        tenant = standing.tenant
        if not tenant:
            return
        if len(self._tenants) < MOST_TENANTS:
            self._tenants[tenant] = None
        name = tenant if tenant in self._tenants else "other"
        self._requests.labels(name, end).inc()
        for kind, count in zip(("prompt", "output"), num_tokens, strict=True):
            self._tokens.labels(name, kind).inc(count)

    def finished(
        self, standing: Standing, times: Sequence[float], answered_at: float | None, num_tokens: int
    ) -> None:
        """Count a finished output's times: arrival, first token, last token; the first answer."""
        service = standing.service
        if service is None or not num_tokens:
            return
        latencies = _latencies(times, answered_at, num_tokens)
        for name, seconds in latencies.items():
            if seconds is not None:
                self._times[name].labels(service.name).observe(seconds)
        self._count(service, service.kept(latencies))

    def unfinished(
        self,
        standing: Standing,
        times: Sequence[float],
        answered_at: float | None,
        num_tokens: int,
        *,
        left: bool,
    ) -> None:
        """Count the promises to an output that did not finish; its third instant is its end.

        One that failed has broken what it had not kept. One whose client ``left`` has broken what
        was overdue.
        """
        service = standing.service
        if service is None:
            return
        latencies = _latencies(times, answered_at, num_tokens)
        waited = times[2] - times[0]
        kept = service.kept_until(latencies, waited) if left else service.kept_by_failed(latencies)
        self._count(service, kept)

    def _count(self, service: ServiceClass, kept: Mapping[str, bool]) -> None:
        for promise, was_kept in kept.items():
            self._promises.labels(service.name, promise, "yes" if was_kept else "no").inc()


def _latencies(
    times: Sequence[float], answered_at: float | None, num_tokens: int
) -> dict[str, float | None]:
    """Return what a client waited for of an output, seconds; None for what has not come."""
    arrival_at, first_at, last_at = times
    return {
        "ttft": first_at - arrival_at if num_tokens else None,
        "ttfat": None if answered_at is None else answered_at - arrival_at,
        "tpot": (last_at - first_at) / (num_tokens - 1) if num_tokens > 1 else None,
        "e2e": last_at - arrival_at,
    }
