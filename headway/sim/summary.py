"""A run in figures: what users felt, how many SLOs were kept, what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from typing import Protocol

from headway.class_metrics import ServedRequest, figures
from headway.errors import require_between
from headway.metrics import Spread
from headway.service_class import ServiceClass
from headway.sim.experiment import Run
from headway.sim.records import Record
from headway.sim.sessions import SessionTask
from headway.sim.solo import SoloTime
from headway.sim.workload import SloLimits

METRICS = ("ttft", "ttfat", "tpot", "ttlt")
_SPREAD = ("mean", "p50", "p90", "p99")
KEPT_OF = "kept_of_"
"""Before a service class's name: the share of its requests whose promises were kept."""
RELATIVE_ERROR = 0.005
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = log(_GROWTH)
_LEAST = 1e-9
_MOST_KEPT = _MOST_FELT = 100_000


class Values(Protocol):
    """The values of one metric."""

    def add(self, value: float) -> None:
        """Add a value."""

    def spread(self) -> Spread | None:
        """Return mean and percentiles; None where there is no value."""


@dataclass(slots=True)
class KeptValues:
    """All values, for exact percentiles."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Add a value."""
        self.values.append(value)

    def spread(self) -> Spread | None:
        """Return mean and percentiles."""
        return Spread.of(self.values)


@dataclass(slots=True)
class Digest:
    """Counts in buckets whose bounds grow by 1 %: any percentile is off by 0.5 % at most.

    As DDSketch (Masson et al., VLDB '19). Values from 1e-9 up; what is less counts as 1e-9.
    """

    num_values: int = 0
    total: float = 0.0
    _counts: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Add a value."""
        self.num_values += 1
        self.total += value
        index = ceil(log(max(value, _LEAST)) / _LOG_GROWTH)
        self._counts[index] = self._counts.get(index, 0) + 1

    @property
    def mean(self) -> float:
        """Exact; 0 without values."""
        return self.total / self.num_values if self.num_values else 0.0

    def percentile(self, share: float) -> float:
        """Return the value below which ``share`` (0 to 1) lie; 0 without values."""
        require_between("share", share, 0, 1)
        rank, seen = share * (self.num_values - 1), 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            if seen > rank:
                return float(2 * _GROWTH**index / (1 + _GROWTH))
        return 0.0

    def spread(self) -> Spread | None:
        """Return mean and percentiles."""
        return Spread(self.mean, *(self.percentile(share) for share in (0.5, 0.9, 0.99)))


@dataclass(slots=True)
class ManyValues:
    """All values of up to 100,000, for exact percentiles; of more, counts in buckets."""

    _kept: KeptValues = field(default_factory=KeptValues)
    _counted: Digest | None = None

    def add(self, value: float) -> None:
        """Add a value."""
        if self._counted is not None:
            self._counted.add(value)
            return
        self._kept.add(value)
        if len(self._kept.values) > _MOST_KEPT:
            self._counted = Digest()
            for each in self._kept.values:
                self._counted.add(each)
            self._kept = KeptValues()

    def spread(self) -> Spread | None:
        """Return mean and percentiles."""
        return (self._counted or self._kept).spread()


@dataclass(slots=True)
class ServedSample:
    """A sample: every request, and of more than 100,000 every second, fourth and so on."""

    kept: list[ServedRequest] = field(default_factory=list)
    _every: int = 1
    _num_seen: int = 0

    @property
    def is_next(self) -> bool:
        """True if the next request is one that is kept."""
        return self._num_seen % self._every == 0

    def add(self, request: ServedRequest | None) -> None:
        """Take in a request; None for one that is not kept or did not finish."""
        self._num_seen += 1
        if request is not None:
            self.kept.append(request)
        if len(self.kept) > _MOST_FELT:
            del self.kept[1::2]
            self._every *= 2


@dataclass(slots=True)
class Summary:
    """The figures of records as they end; times in seconds, shares of all that arrived.

    ``slo_of``: a request's own SLO by its id, where it has one. ``service_of``: its service class,
    of which the promises are counted. ``new_values``: ``ManyValues``, or
    ``Digest`` for constant memory from the beginning. ``solo``: the time of a request that runs
    alone.
    """

    slo: SloLimits
    slo_of: Callable[[str], SloLimits | None] = lambda request_id: None
    new_values: Callable[[], Values] = ManyValues
    solo: SoloTime | None = None
    service_of: Callable[[str], ServiceClass | None] = lambda request_id: None
    num_requests: int = 0
    num_finished: int = 0
    num_kept: int = 0
    num_tokens: int = 0
    first_at: float = float("inf")
    values: dict[str, Values] = field(default_factory=dict)
    served: ServedSample = field(default_factory=ServedSample)
    promised: Counter[str] = field(default_factory=Counter)
    """Requests by service class."""
    promises_kept: Counter[str] = field(default_factory=Counter)
    """Requests by service class that finished with all its promises kept."""

    def ended(self, record: Record) -> None:
        """Take in a request that is over."""
        self.num_requests += 1
        self.num_finished += record.finished
        self.num_kept += keeps(record, self.slo_of(record.request_id) or self.slo)
        self._count_promises(record)
        self.num_tokens += record.num_tokens
        self.first_at = min(self.first_at, record.arrival_at)
        for metric in METRICS:
            value = getattr(record, metric)
            if value is not None:
                self.values.setdefault(metric, self.new_values()).add(value)
        self.served.add(self._as_served(record) if self.served.is_next else None)

    def _count_promises(self, record: Record) -> None:
        service = self.service_of(record.request_id)
        if service is None:
            return
        times = {"ttft": record.ttft, "ttfat": record.ttfat, "tpot": record.tpot}
        kept = service.kept({**times, "e2e": record.ttlt})
        self.promised[service.name] += 1
        self.promises_kept[service.name] += record.finished and all(kept.values())

    def _as_served(self, record: Record) -> ServedRequest | None:
        if self.solo is None:
            return record.as_served()
        return record.as_served(self.solo.of(record.num_prompt_tokens, record.num_tokens))

    def row(self, run: Run) -> dict[str, float]:
        """Return a flat row for tables and JSON: ``ttft_p99`` and so on.

        ``lost``: the share that was refused or ended at its deadline; it keeps no SLO.
        """
        ended_at = run.ended_at
        seconds = max(ended_at - min(self.first_at, ended_at), 1e-9)
        spreads = {m: self.values[m].spread() for m in METRICS if m in self.values}
        flat = {
            f"{metric}_{name}": getattr(spread, name)
            for metric, spread in spreads.items()
            for name in _SPREAD
        }
        return {
            **flat,
            **figures(self.served.kept),
            "preemptions": run.num_preemptions / max(self.num_requests, 1),
            "num_requests": self.num_requests,
            "num_finished": self.num_finished,
            "lost": 1 - self.num_finished / max(self.num_requests, 1),
            "attainment": self.num_kept / max(self.num_requests, 1),
            **{f"{KEPT_OF}{n}": self.promises_kept[n] / m for n, m in self.promised.items()},
            "goodput": self.num_kept / seconds,
            "tokens_per_s": self.num_tokens / seconds,
            "gpu_seconds": run.gpu_seconds,
            "hit_share": run.hit_share,
            **task_figures(run.tasks),
        }


def summarise(
    run: Run,
    slo: SloLimits,
    slo_of: Callable[[str], SloLimits | None] = lambda request_id: None,
    solo: SoloTime | None = None,
    service_of: Callable[[str], ServiceClass | None] = lambda request_id: None,
) -> dict[str, float]:
    """Return the row of a run that kept its records.

    Without an ended request it has no spreads, and without ``solo`` no slowdowns.
    """
    summary = Summary(slo, slo_of, solo=solo, service_of=service_of)
    for record in run.records:
        summary.ended(record)
    return summary.row(run)


def task_figures(tasks: Sequence[SessionTask]) -> dict[str, float]:
    """Return the times of sessions that ended whole, and their turns; nothing without sessions.

    ``tasks_cut``: the share that lost a turn.
    """
    if not tasks:
        return {}
    whole = [task for task in tasks if not task.error]
    spread = Spread.of([task.seconds for task in whole])
    return {
        **({} if spread is None else {f"task_{n}": getattr(spread, n) for n in _SPREAD}),
        "turns": sum(task.num_turns for task in tasks) / len(tasks),
        "num_tasks": len(tasks),
        "tasks_cut": 1 - len(whole) / len(tasks),
    }


def figures_by_class(records: Iterable[Record], solo: SoloTime) -> dict[str, float]:
    """Return what users of each class felt."""
    served = (each.as_served(solo.of(each.num_prompt_tokens, each.num_tokens)) for each in records)
    return figures(each for each in served if each is not None)


def keeps(record: Record, slo: SloLimits) -> bool:
    """Return whether a request finished within every limit."""
    return not missed_limit(record, slo)


def missed_limit(record: Record, slo: SloLimits) -> str:
    """Return the first limit that a request missed, ``end`` if it did not finish; "" for none."""
    if not record.finished:
        return "end"
    for metric in METRICS:
        limit = getattr(slo, metric)
        if limit is None:
            continue
        if metric == "ttfat":
            limit += slo.ttfat_per_reasoning_token * record.num_reasoning_tokens
        value = getattr(record, metric)
        if value is not None and value > limit:
            return metric
    return ""
