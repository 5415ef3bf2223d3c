"""A run in figures: what users felt, how many SLOs were kept, what it took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headway.metrics import Spread
from headway.sim.experiment import Run
from headway.sim.records import Record
from headway.sim.workload import Slo

METRICS = ("ttft", "ttfat", "tpot", "ttlt")


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds by metric; ``attainment`` is a share of all requests that arrived."""

    spreads: dict[str, Spread]
    num_requests: int
    num_finished: int
    attainment: float
    goodput: float
    tokens_per_s: float
    gpu_seconds: float

    def row(self) -> dict[str, float]:
        """Return a flat row for tables and JSON: ``ttft_p99`` and so on."""
        flat = {
            f"{metric}_{name}": getattr(spread, name)
            for metric, spread in self.spreads.items()
            for name in ("mean", "p50", "p90", "p99")
        }
        rest = ("num_requests", "num_finished", "attainment", "goodput", "tokens_per_s")
        return {**flat, **{name: getattr(self, name) for name in (*rest, "gpu_seconds")}}


def summarise(
    run: Run, slo: Slo, slo_of: Callable[[str], Slo | None] = lambda request_id: None
) -> Summary:
    """Summarise a run that kept its records; without an ended request it has no spreads.

    ``slo_of``: a request's own SLO by its id, where it has one.
    """
    records = run.records
    spreads = {
        metric: spread
        for metric in METRICS
        if (spread := Spread.of(_values(records, metric))) is not None
    }
    num_kept = sum(keeps(record, slo_of(record.request_id) or slo) for record in records)
    seconds = max(run.ended_at - min((r.arrival_at for r in records), default=0.0), 1e-9)
    return Summary(
        spreads=spreads,
        num_requests=len(records),
        num_finished=sum(record.finished for record in records),
        attainment=num_kept / max(len(records), 1),
        goodput=num_kept / seconds,
        tokens_per_s=sum(record.num_tokens for record in records) / seconds,
        gpu_seconds=run.gpu_seconds,
    )


def keeps(record: Record, slo: Slo) -> bool:
    """Return whether a request finished within every limit."""
    if not record.finished:
        return False
    limits = {metric: getattr(slo, metric) for metric in METRICS}
    if slo.ttfat is not None:
        limits["ttfat"] = slo.ttfat + slo.ttfat_per_reasoning_token * record.num_reasoning_tokens
    return all(
        limit is None or (value := getattr(record, metric)) is None or value <= limit
        for metric, limit in limits.items()
    )


def _values(records: Sequence[Record], metric: str) -> Iterable[float]:
    return [value for record in records if (value := getattr(record, metric)) is not None]
