"""Metrics of the leader's index of prefixes: its size, its hits by tier, and its errors.

Totals are of the leader's term: a new leader begins at 0, as a restarted process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway.core.scheduler.prefill import PoolStatus
from headway.core.scheduler.prefix_figures import PrefixFigures, TierFigures

_BY_TIER: tuple[tuple[str, str, Callable[[TierFigures], int]], ...] = (
    (
        "prefix_expected_tokens",
        "Prompt tokens that the index expected to be cached, at dispatches",
        lambda tier: tier.num_expected_tokens,
    ),
    (
        "prefix_reported_tokens",
        "Prompt tokens that were cached, by workers' admissions",
        lambda tier: tier.num_reported_tokens,
    ),
)
_TOTALS: tuple[tuple[str, str, Callable[[PrefixFigures], int]], ...] = (
    (
        "prefix_claims",
        "Names of cached prefixes that workers' snapshots brought",
        lambda index: index.num_claims,
    ),
    (
        "prefix_false_claims",
        "Admissions that found less than a worker's snapshot had claimed",
        lambda index: index.num_false_claims,
    ),
    (
        "prefix_bad_reports",
        "Reported hits and names that cannot be, and were dropped",
        lambda index: index.num_bad_reports,
    ),
)


def prefix_metrics(pools: Iterable[PoolStatus]) -> Iterator[Metric]:
    """Yield the figures of each model's index; none where no policy reads prefixes."""
    indexes = [(pool.model, pool.prefixes) for pool in pools if pool.prefixes is not None]
    names = GaugeMetricFamily(
        "headway_scheduler_prefix_names",
        "Names of cached prefixes in the index, by tier",
        labels=["model", "tier"],
    )
    for model, index in indexes:
        for tier in index.tiers:
            names.add_metric([model, tier.tier], tier.num_names)
    yield names
    for name, text, read_tier in _BY_TIER:
        counter = _counter(name, text, "model", "tier")
        for model, index in indexes:
            for tier in index.tiers:
                counter.add_metric([model, tier.tier], read_tier(tier))
        yield counter
    for name, text, read in _TOTALS:
        counter = _counter(name, text, "model")
        for model, index in indexes:
            counter.add_metric([model], read(index))
        yield counter


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"headway_scheduler_{name}", text, labels=labels)
