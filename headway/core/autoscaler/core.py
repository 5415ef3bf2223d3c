"""The autoscaler's decisions: rates and loads in, replica targets out, once an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.core.autoscaler.events import (
    ROLES,
    AutoscalerEvent,
    FleetReport,
    OrderedReport,
    PublishTargets,
    RateReport,
)
from headway.core.autoscaler.models import all_fleets, is_meant
from headway.core.autoscaler.settings import AutoscalerSettings
from headway.core.autoscaler.starts import StartsReport, StartUps
from headway.errors import invalid
from headway.policies.scaling.protocol import Fleet, Rates, Scaling, WorkSample

__all__ = [
    "AutoscalerCore",
    "AutoscalerEvent",
    "FleetReport",
    "OrderedReport",
    "PublishTargets",
    "RateReport",
]

CHANGEABLE = ("prefill", "decode", "unified")
"""Roles that change without a restart; a convertible decoder has a chunk size of its own."""

MAX_GATEWAYS = 4096
MAX_MODELS = 1024
MAX_SAMPLES = 10_000


class AutoscalerCore:
    """``Core[AutoscalerEvent, PublishTargets]``. Times in seconds.

    A report counts for a while from its arrival: a missing or stale figure is not zero traffic.
    """

    def __init__(
        self, policy: Scaling, *, now: float, settings: AutoscalerSettings | None = None
    ) -> None:
        settings = settings or AutoscalerSettings()
        self._policy = policy
        self._budget = settings.budget
        self._interval = settings.interval
        self._staleness = settings.staleness
        self._reports: dict[tuple[str, str], tuple[float, RateReport]] = {}
        self._model = settings.model
        self._fleets: dict[str, tuple[float, Fleet]] = {}
        self._ordered: tuple[float, OrderedReport] | None = None
        self._samples: list[WorkSample] = []
        self._start_ups = StartUps()
        self._has_begun = False
        self._wake_at = now

    @property
    def next_wakeup(self) -> float | None:
        """Instant of the next decision."""
        return self._wake_at

    def handle(self, event: AutoscalerEvent, *, now: float) -> Sequence[PublishTargets]:
        """Keep each sender's newest report; ignore reports that arrive out of order."""
        self._forget_stale(now)
        match event:
            case FleetReport() | RateReport() if not is_meant(event.model, self._model):
                pass  # another autoscaler's
            case FleetReport():
                self._take_fleet(event, now)
            case OrderedReport():
                self._begin_with(event)
                self._ordered = (now, event)
                wanted = {role: n for role in ROLES if (n := event.of(role)) is not None}
                self._start_ups.ordered(wanted, now=now)
            case StartsReport():
                self._start_ups.take(event)
            case RateReport():
                self._take_rates(event, now)
        return ()

    def _begin_with(self, ordered: OrderedReport) -> None:
        """Start the policy from the ordered pools, not from their minimum."""
        if not self._has_begun:
            self._has_begun = True
            self._policy.begin(ordered.fleet)

    def _take_fleet(self, report: FleetReport, now: float) -> None:
        if report.model not in self._fleets and len(self._fleets) >= MAX_MODELS:
            raise invalid("the number of models", len(self._fleets) + 1, f"at most {MAX_MODELS}")
        self._fleets[report.model] = (now, report.fleet)
        fleet = all_fleets([fleet for _, fleet in self._fleets.values()])
        ready = {role: getattr(fleet, role).num_ready for role in ROLES}
        self._start_ups.ready(ready, now=now)
        self._samples += report.fleet.samples
        del self._samples[:-MAX_SAMPLES]

    def _take_rates(self, report: RateReport, now: float) -> None:
        sender = report.gateway_id, report.model  # a gateway reports each of its models
        known = self._reports.get(sender)
        if known is not None and report.observed_at < known[1].observed_at:
            return
        if known is None and len(self._reports) >= MAX_GATEWAYS:
            raise invalid(
                "the number of gateways", len(self._reports) + 1, f"at most {MAX_GATEWAYS}"
            )
        self._reports[sender] = (now, report)

    def wake(self, *, now: float) -> Sequence[PublishTargets]:
        """Decide on targets."""
        self._wake_at = now + self._interval
        self._has_begun = True
        self._forget_stale(now)
        rates, fleet = self._rates(), self._fleet()
        targets = self._budget.fit(self._policy.targets(rates, fleet, now=now))
        used = tuple(self._policy.constants())
        return (PublishTargets(targets, now, self._policy.name, rates, fleet, used),)

    def _forget_stale(self, now: float) -> None:
        for sender, (arrived_at, _) in list(self._reports.items()):
            if now - arrived_at > self._staleness:
                del self._reports[sender]
        for model, (arrived_at, _) in list(self._fleets.items()):
            if now - arrived_at > self._staleness:
                del self._fleets[model]
        if self._ordered is not None and now - self._ordered[0] > self._staleness:
            self._ordered = None

    def _fleet(self) -> Fleet | None:
        """Return the fleet if fresh; count ordered instances that are not ready as starting."""
        if not self._fleets:
            return None
        start_up = self._start_ups.next()
        known = all_fleets([fleet for _, fleet in self._fleets.values()])
        fleet = replace(known, samples=tuple(self._samples), start_up=start_up)
        self._samples.clear()
        if self._ordered is None:
            return fleet
        pools = {role: getattr(fleet, role) for role in ROLES}
        for role, pool in pools.items():
            ordered = self._ordered[1].of(role)
            if ordered is not None:
                num_starting = max(0, ordered - pool.num_ready)
                pools[role] = replace(pool, num_starting=num_starting)
        return replace(fleet, **pools)

    def _rates(self) -> Rates | None:
        fresh = [report for _, report in self._reports.values()]
        if not fresh:
            return None
        return Rates(
            sum(report.requests_per_s for report in fresh),
            sum(report.input_tokens_per_s for report in fresh),
            sum(report.output_tokens_per_s for report in fresh),
            _added([report.bucket_tokens_per_s for report in fresh]),
            _all_known([report.burst_tokens_per_s for report in fresh]),
            _least([report.inter_token_limit for report in fresh]),
            _least([report.first_token_limit for report in fresh]),
        )


def _added(by_bucket: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Add up by bucket; return nothing if a gateway does not report its buckets."""
    if not all(by_bucket):
        return ()
    return tuple(sum(rates) for rates in zip(*by_bucket, strict=True))


def _all_known(rates: Sequence[float | None]) -> float | None:
    """Return their sum; None if a gateway does not report its own."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _least(limits: Sequence[float | None]) -> float | None:
    """Return the strictest promise; None if no gateway has one."""
    return min((limit for limit in limits if limit is not None), default=None)


class RoleChange(NamedTuple):
    """An order to change the role of a number of instances from ``source`` to ``target``."""

    source: str
    target: str
    num_instances: int


def role_changes(counts: Mapping[str, int], wanted: Mapping[str, int]) -> list[RoleChange]:
    """Return the role changes from shrinking pools to growing ones.

    ``counts`` and ``wanted``: instances by role; a role missing from ``counts`` does not change.
    """
    over = {
        role: counts[role] - wanted.get(role, counts[role]) for role in CHANGEABLE if role in counts
    }
    changes: list[RoleChange] = []
    for source in over:
        for target in over:
            number = min(over[source], -over[target])
            if number > 0:
                changes.append(RoleChange(source, target, number))
                over[source] -= number
                over[target] += number
    return changes
