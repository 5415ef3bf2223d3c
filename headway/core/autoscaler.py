"""The autoscaler's decisions: rates in, replica targets out, once an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import invalid
from headway.policies.scaling.protocol import Rates, Scaling, Targets

MAX_GATEWAYS = 4096
_FIGURES = (
    "observed_at",
    "window",
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
)


@dataclass(frozen=True, slots=True)
class RateReport:
    """A gateway's rates per second over its last ``window`` (s).

    ``observed_at`` is by the gateway's clock: it orders that gateway's reports, nothing else.
    """

    gateway_id: str
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    observed_at: float = 0.0
    window: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < len(self.gateway_id) <= 256:
            raise invalid("gateway_id", self.gateway_id, "1 to 256 characters long")
        for name in _FIGURES:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise invalid(name, value, "a finite number, at least 0")


@dataclass(frozen=True, slots=True)
class PublishTargets:
    """Tell the world."""

    targets: Targets
    decided_at: float
    policy: str


class AutoscalerCore:
    """``Core[RateReport, PublishTargets]``. Times in seconds.

    A report counts from its arrival for ``staleness`` seconds: a missing or stale figure is not
    zero traffic.
    """

    def __init__(
        self, policy: Scaling, *, now: float, interval: float = 1.0, staleness: float = 5.0
    ) -> None:
        self._policy = policy
        self._interval = interval
        self._staleness = staleness
        self._reports: dict[str, tuple[float, RateReport]] = {}
        self._wake_at = now

    @property
    def next_wakeup(self) -> float | None:
        """When the next decision is due."""
        return self._wake_at

    def handle(self, event: RateReport, *, now: float) -> Sequence[PublishTargets]:
        """Keep a gateway's newest report; one that was overtaken changes nothing."""
        self._forget_stale(now)
        known = self._reports.get(event.gateway_id)
        if known is not None and event.observed_at < known[1].observed_at:
            return ()
        if known is None and len(self._reports) >= MAX_GATEWAYS:
            raise invalid(
                "the number of gateways", len(self._reports) + 1, f"at most {MAX_GATEWAYS}"
            )
        self._reports[event.gateway_id] = (now, event)
        return ()

    def wake(self, *, now: float) -> Sequence[PublishTargets]:
        """Decide."""
        self._wake_at = now + self._interval
        self._forget_stale(now)
        targets = self._policy.targets(self._rates())
        return (PublishTargets(targets, now, self._policy.name),)

    def _forget_stale(self, now: float) -> None:
        for gateway_id, (arrived_at, _) in list(self._reports.items()):
            if now - arrived_at > self._staleness:
                del self._reports[gateway_id]

    def _rates(self) -> Rates | None:
        fresh = [report for _, report in self._reports.values()]
        if not fresh:
            return None
        return Rates(
            sum(report.requests_per_s for report in fresh),
            sum(report.input_tokens_per_s for report in fresh),
            sum(report.output_tokens_per_s for report in fresh),
        )
